"""The work for a task in its own process: ``python -m fedran.federation.site.worker SITE.toml``.

The offer comes on stdin; what is made lies in the outbox; what went wrong comes back in a
sentence on stdout. What an entry point prints goes to stderr, with the log.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedran.core.errors import Refused, printable
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.logs import log_to
from fedran.federation.protocol.messages import Offer
from fedran.federation.protocol.settings import load_settings
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import SiteSettings
from fedran.federation.site.source import FolderSource, FunctionSource, Source
from fedran.federation.site.task_work import Site

if TYPE_CHECKING:
    from fedran.backbones.backbone import Backbone

log = logging.getLogger("fedran.federation.site.worker")
LONGEST = 4096
"""Bytes of an answer; a pipe holds them without a reader."""
DONE = "done: "
"""Begins an answer: a child that ended without one did not come to its end."""
GRACE = 5
"""Seconds after which the child ends by itself, should the parent be gone."""


def work_apart(path: Path, settings: SiteSettings, offer: Offer) -> str:
    """As ``work``, in a child that is limited in memory and killed when its time is over."""
    task, path = f"task {offer.task}", path.absolute()
    child = subprocess.Popen(  # noqa: S603
        [sys.executable, "-P", "-m", "fedran.federation.site.worker", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        cwd=path.parent,
        env={k: v for k, v in os.environ.items() if not k.startswith("FLWR_")},
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdout as answer:
        try:
            with suppress(BrokenPipeError), child.stdin as question:
                question.write(json.dumps(offer.fields()).encode())
            child.wait(settings.seconds)
        except subprocess.TimeoutExpired:
            expected = f"an upload within {settings.seconds:g} seconds"
            return str(Refused(task, expected, "none", hint="the site's `seconds` limits it"))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # and what it started itself
            child.wait()
        os.set_blocking(answer.fileno(), False)  # someone may have left the group with it
        said = printable((answer.read(LONGEST) or b"").decode(errors="replace"), LONGEST)
    if said.startswith(DONE):
        return said.removeprefix(DONE)
    how = f"signal {-child.returncode}" if child.returncode < 0 else f"status {child.returncode}"
    hint = f"the site's log may say more; it has {settings.memory_mib} MiB for the work"
    return str(Refused(task, "an upload", f"a process that ended with {how}", hint=hint))


def work(path: Path, offer: Offer) -> str:
    """Make the upload for a task, those that were missed and those that were damaged.

    The answer is why something was not made, in a sentence; rows for an earlier task that are
    not there are no fault.
    """
    told = []
    try:
        site = site_at(path)
        for task in dict.fromkeys((offer.task, *site.outbox.lost(), *offer.earlier)):
            if task != offer.task and site.outbox.has(task):
                continue
            try:
                site.prepare(replace(offer, task=task, earlier=()))
            except (Exception, SystemExit) as reason:
                if task in offer.earlier and isinstance(reason, FileNotFoundError):
                    continue
                told.append(f"task {task}: {because(reason, path.parent)}")
    except (Exception, SystemExit) as reason:
        told.append(f"task {offer.task}: {because(reason, path.parent)}")
    return "; ".join(told)


def because(reason: BaseException, here: Path | None) -> str:
    """A failure as the server may hear it: our own sentences, of others only the kind.

    What others raise may hold anything, so its text stays in the site's log, as paths do.
    """
    if isinstance(reason, MemoryError):
        log.warning("out of memory: %s", reason)
        return "memory: expected enough for the work, got too little; raise the site's memory_mib"
    if here is not None and isinstance(reason, (Refused, FileNotFoundError)):
        log.warning("nothing to send: %s", reason)
        return printable(str(reason).replace(f"{here}{os.sep}", ""))
    log.error("nothing to send", exc_info=reason)
    return f"{type(reason).__name__} at the site; its log says more"


def site_at(path: Path) -> Site:
    """The site that a configuration file describes; paths in it are relative to the file."""
    settings, here = load_settings(SiteSettings, path), path.parent
    if settings.entry is not None and str(here) not in sys.path:
        sys.path.append(str(here))
    source: Source
    if settings.folder is not None:
        source = FolderSource(here / settings.folder)
    else:
        source = FunctionSource(settings.entry or "")
    return Site(
        settings.client,
        settings.federation,
        SiteKey.load(here / settings.key),
        source,
        Outbox(here / settings.state / "outbox"),
        backbone=_loader(settings.backbone, here) if settings.backbone else None,
        made_by=settings.source,
        min_class_count=settings.min_class_count,
        pseudo_labels=settings.pseudo_labels,
    )


def _loader(spec: str, here: Path) -> Callable[[], Backbone]:
    kind, colon, name = spec.partition(":")
    beside = here / Path(name).expanduser()

    def load() -> Backbone:
        from fedran.backbones import catalogue

        return catalogue.load_backbone(f"{kind}:{beside}" if colon and beside.exists() else spec)

    return load


def confine(settings: SiteSettings) -> None:
    """Limit this process: memory, time, and no image of it on disk when it crashes."""
    signal.alarm(math.ceil(settings.seconds) + GRACE)
    if sys.platform == "linux":
        import resource

        most = settings.memory_mib * 2**20
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(path: Path) -> None:
    """The child."""
    answer = os.dup(1)
    os.dup2(2, 1)
    log_to(path.parent)
    confine(load_settings(SiteSettings, path))
    told = work(path, Offer.read(json.load(sys.stdin)))
    sys.stdout.flush()
    os.write(answer, f"{DONE}{told}".encode(errors="replace")[:LONGEST])
    os._exit(0)  # without waiting for threads that an entry point may have left


if __name__ == "__main__":
    main(Path(sys.argv[1]))
