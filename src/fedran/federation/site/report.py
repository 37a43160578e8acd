"""The state of a site, for ``fedran federation status SITE``. Only reads files."""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedran.core.labels import Label
from fedran.federation.protocol.connection import certificate_expiry
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.secure.attempt import STAGES
from fedran.federation.secure.contribution import spent_epsilon
from fedran.federation.secure.pinning import PinnedRoster, roster_fingerprint
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import CONNECTION, HEAD, OUTBOX, SitePaths, newest_head
from fedran.federation.site.sum_files import FOLDER, SumFiles
from fedran.wire.files import folder_bytes, read_json_object
from fedran.wire.validation import FILE_LIMITS

ALARMS = "alarms.jsonl"
"""In the state folder: one line per run whose app was not ours."""

NOT_INSTALLED = "not installed"


@dataclass(frozen=True)
class TaskReport:
    """The upload of one task."""

    task: str
    bytes: int
    made: float
    """Unix time."""
    classes: list[tuple[Label, int]]
    """What the upload says: labels and rows."""
    withheld: list[tuple[Label, int]]
    """Classes with too few rows, which were not sent."""
    code: str
    """Of the receipt; "pending" without one."""
    reason: str


@dataclass(frozen=True)
class SumReport:
    """The part of this site in the newest attempt at a secure sum of one task."""

    task: str
    attempt: int
    """0 before the first one."""
    stage: str
    """The last exchange that this site answered; empty before."""
    members: list[str]
    """The sites whose sum it has confirmed; empty before."""
    code: str
    """Of the receipt; "pending" without one, "refused" while this site refuses its rows."""
    reason: str


@dataclass(frozen=True)
class SiteReport:
    """The state of a site at one moment."""

    at: float
    folder: str
    federation: str
    client: str
    server: str
    running: bool
    connection: str
    """As the running site noted it last; empty if it never ran."""
    last_contact: float | None
    tasks: list[TaskReport]
    head_classes: int | None
    head_at: float | None
    disk_bytes: int
    disk_free: int
    ca_expires: float | None
    versions: dict[str, str]
    sums: list[SumReport] = field(default_factory=list)
    """Secure sums, sorted by task."""
    epsilon: float | None = None
    """What a person with one row in every task has spent, at ``max_delta``; None: nothing."""
    roster: str = ""
    """Fingerprint of the pinned roster; empty without one."""
    roster_changed: bool = False
    """Whether the server has shown another roster since. Then this site takes part in no sum."""
    alarms: list[dict[str, Any]] = field(default_factory=list)
    """Runs whose app was not ours, newest last."""

    def to_json(self) -> str:
        """All fields as indented JSON."""
        return json.dumps(asdict(self), indent=2)


def read_site(paths: SitePaths) -> SiteReport:
    """The state of a site now."""
    settings = paths.settings()
    state = paths.state
    pinned = PinnedRoster(state)
    contact = read_json_object(state / CONNECTION) or {}
    head = newest_head(state)
    return SiteReport(
        at=time.time(),
        folder=str(paths.folder),
        federation=settings.federation,
        client=settings.client,
        server=settings.server,
        running=lock_holder(paths.folder / "log") is not None,
        connection=str(contact.get("state", "")),
        last_contact=contact.get("at") if isinstance(contact.get("at"), float) else None,
        tasks=_tasks(state / OUTBOX),
        head_classes=None if head is None else len(head.classes),
        head_at=None if head is None else (state / HEAD).stat().st_mtime,
        disk_bytes=folder_bytes(state),
        disk_free=shutil.disk_usage(paths.folder).free,
        ca_expires=certificate_expiry(paths.folder / settings.ca),
        versions=versions(),
        sums=_sums(state) if (state / FOLDER).is_dir() else [],
        epsilon=_epsilon(state, settings.max_delta) if (state / FOLDER).is_dir() else None,
        roster=roster_fingerprint(pinned.clients) if pinned.clients else "",
        roster_changed=bool(pinned.shown) and pinned.shown != pinned.clients,
        alarms=_alarms(state / ALARMS),
    )


def versions() -> dict[str, str]:
    """Versions of this package, of Flower and of Python."""
    found = {"python": sys.version.split()[0]}
    for name in ("fedran", "flwr"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = NOT_INSTALLED
    return found


def _epsilon(state: Path, delta: float) -> float | None:
    try:
        sent = SumFiles(state).sent()
    except (OSError, ValueError):  # it changes while it is read, or is damaged
        return None
    return spent_epsilon(sent.values(), delta) if sent else None


def _sums(state: Path) -> list[SumReport]:
    files, found = SumFiles(state), []
    for task in sorted({path.stem for path in files.folder.glob("*.note")}):
        try:
            newest, note = files.state(task), files.note(task)
        except (OSError, ValueError):  # it changes while it is read, or is damaged
            continue
        refused = str(note.get("refused") or "")
        if newest is not None or refused:
            answered = [stage for stage in STAGES if newest and stage in newest.answers]
            found.append(
                SumReport(
                    task,
                    newest.attempt.number if newest else 0,
                    str(answered[-1]) if answered else "",
                    list(newest.survivors) if newest else [],
                    "refused" if refused else str(note.get("code", "pending")),
                    refused or str(note.get("reason", "")),
                )
            )
    return found


def _tasks(folder: Path) -> list[TaskReport]:
    if not folder.is_dir():
        return []
    outbox, found = Outbox(folder), []
    for path in folder.glob("*.envelope"):
        receipt = outbox.receipt(path.stem)
        try:
            file = path.stat()
        except FileNotFoundError:  # withdrawn or put aside meanwhile
            continue
        try:
            message = open_envelope(path.read_bytes(), FILE_LIMITS).message()
            classes = list(zip(message.classes, map(int, message.counts), strict=True))
        except (OSError, ValueError):
            classes = []
        found.append(
            TaskReport(
                task=path.stem,
                bytes=file.st_size,
                made=file.st_mtime,
                classes=classes,
                withheld=[(label, n) for label, n in outbox.note(path.stem).get("withheld", [])],
                code=receipt.code.value if receipt else "pending",
                reason=receipt.reason if receipt else "",
            )
        )
    return sorted(found, key=lambda task: task.made)


def _alarms(path: Path) -> list[dict[str, Any]]:
    """The newest alarms. Lines that cannot be read are left out."""
    found = []
    for line in path.read_text(errors="replace").splitlines()[-100:] if path.is_file() else []:
        try:
            alarm = json.loads(line)
        except ValueError:
            continue
        if isinstance(alarm, dict):
            found.append(alarm)
    return found
