"""Makes a site's uploads in a separate process, with limits on time and memory.

``python -m fedran.federation.site.worker SITE.toml`` is the child process. It reads the offer from
stdin, puts uploads into the outbox, or a contribution to a secure sum into its file, and writes
problems to stdout. Text that an entry point prints goes to stderr, with the log.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil

from fedran.core.errors import Refused, printable
from fedran.federation.protocol.configuration import load_settings
from fedran.federation.protocol.limits import GRACE_SECONDS, MAX_ANSWER
from fedran.federation.protocol.lockfile import AlreadyRunning
from fedran.federation.protocol.logs import log_to
from fedran.federation.protocol.messages import Offer
from fedran.federation.secure.masking.contribution import Content
from fedran.federation.secure.site.participant import NoContribution, make_contribution
from fedran.federation.secure.site.sum_files import SumFiles
from fedran.federation.site.settings import SiteSettings
from fedran.federation.site.source import NoRows
from fedran.federation.site.upload import Site

log = logging.getLogger("fedran.federation.site.worker")
DONE, FAILED = "done: ", "failed: "
"""The start of every answer. Without it, the child ended before its work was done."""
PATH = re.compile(r"(?<![\w.])(?:~?/|[A-Za-z]:\\)\S")
"""The start of an absolute path in a text."""


class Problems(NamedTuple):
    """Why an upload was not made."""

    text: str = ""
    """For the server; empty if there is none."""
    failed: bool = False
    """Whether something is wrong. Otherwise the site has no rows yet."""


class WorkerFailed(ChildProcessError):
    """The child process ended without an answer, or an upload could not be made."""


def work_in_child(
    path: Path, settings: SiteSettings, offer: Offer, content: Content | None = None
) -> Problems:
    """``work`` in a child process that has limited time and memory."""
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
    with child.stdout as stdout:
        try:
            with suppress(BrokenPipeError), child.stdin as stdin:
                job = {"offer": offer.fields(), "content": content and content.fields()}
                stdin.write(json.dumps(job).encode())
            child.wait(settings.seconds)
        except subprocess.TimeoutExpired:
            raise WorkerFailed(
                f"{task}: no upload was made within {settings.seconds:g} seconds; the "
                "site's `seconds` sets this limit"
            ) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # and every process that it started
            child.wait()
        os.set_blocking(stdout.fileno(), False)  # a process that left the group may hold the pipe
        answer = printable((stdout.read(MAX_ANSWER) or b"").decode(errors="replace"), MAX_ANSWER)
    for mark in (DONE, FAILED):
        if answer.startswith(mark):
            return Problems(answer.removeprefix(mark), mark == FAILED)
    how = f"signal {-child.returncode}" if child.returncode < 0 else f"status {child.returncode}"
    raise WorkerFailed(
        f"{task}: the process that makes the upload ended with {how}; see the site's log; its "
        f"memory limit is {settings.memory_mib} MiB"
    )


def work(path: Path, offer: Offer, content: Content | None = None) -> Problems:
    """Make the upload of the offered task, and those of earlier tasks that are lost or missing.

    Missing rows of an earlier task are not a problem. With ``content``, make the contribution to a
    secure sum instead.
    """
    if content is not None:
        return _contribute(path, offer, content)
    problems, failed = [], False
    try:
        site = Site.load(path)
        for task in dict.fromkeys((offer.task, *site.outbox.to_make(offer.earlier))):
            try:
                site.prepare(replace(offer, task=task, earlier=()))
            except (Exception, SystemExit) as reason:
                if task in offer.earlier and isinstance(reason, FileNotFoundError):
                    continue
                failed = failed or not isinstance(reason, FileNotFoundError)
                problems.append(f"task {task}: {text_for_server(reason, path.parent)}")
    except (Exception, SystemExit) as reason:
        failed = True
        problems.append(f"task {offer.task}: {text_for_server(reason, path.parent)}")
    return Problems("; ".join(problems), failed)


def _contribute(path: Path, offer: Offer, content: Content) -> Problems:
    try:
        files = SumFiles(path.parent / load_settings(SiteSettings, path).state)
        site, omega = Site.load(path), files.path(offer.task, "omega")
        encoded = omega.read_bytes() if content.omega else b""
        files.put_vector(offer.task, make_contribution(site, offer, content, encoded), content)
    except (Exception, SystemExit) as reason:
        told = f"task {offer.task}: {text_for_server(reason, path.parent)}"
        return Problems(told, not isinstance(reason, NoRows))
    return Problems()


def text_for_server(
    reason: BaseException, folder: Path | None, what: str = "no upload was made"
) -> str:
    """An error as the server may see it: our own messages verbatim, others by type only.

    ``what`` begins the line in the site's log.

    Messages of third-party exceptions may contain private data, so they stay in the site's log.
    Absolute paths stay there too: they name the site's data and users.
    """
    if isinstance(reason, (WorkerFailed, NoContribution)):
        log.warning("%s: %s", what, reason)
        return str(reason)
    if isinstance(reason, MemoryError):
        log.warning("out of memory: %s", reason)
        return "out of memory; raise the site's memory_mib"
    if folder is not None and isinstance(reason, (Refused, FileNotFoundError, AlreadyRunning)):
        log.warning("%s: %s", what, reason)
        text = printable(str(reason).replace(f"{folder}{os.sep}", ""))
        if not PATH.search(text):
            return text
    else:
        log.error("%s", what, exc_info=reason)
    return f"{type(reason).__name__} at the site; its log says more"


def limit_resources(settings: SiteSettings) -> None:
    """Limit memory and time of this process, and write no core dump.

    Memory that is reserved already is not counted. At import, OpenBLAS reserves 80 MiB per thread
    and uses little of it: 64 cores would exceed the default limit before the work starts.
    """
    signal.alarm(math.ceil(settings.seconds) + GRACE_SECONDS)
    if sys.platform == "linux":
        import resource

        most = settings.memory_mib * 2**20 + psutil.Process().memory_info().data
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(path: Path) -> None:
    """The child process."""
    answer = os.dup(1)
    os.dup2(2, 1)
    log_to(path.parent)
    limit_resources(load_settings(SiteSettings, path))
    job = json.load(sys.stdin)
    content = None if job["content"] is None else Content.read(job["content"])
    problems = work(path, Offer.read(job["offer"]), content)
    sys.stdout.flush()
    mark = FAILED if problems.failed else DONE
    os.write(answer, f"{mark}{problems.text}".encode(errors="replace")[:MAX_ANSWER])
    os._exit(0)  # do not wait for threads that an entry point may have left


if __name__ == "__main__":
    main(Path(sys.argv[1]))
