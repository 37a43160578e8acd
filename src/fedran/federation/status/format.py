"""Values and sentences of a status, the same in the terminal and on the page."""

from __future__ import annotations

from collections import defaultdict

from fedran.core.errors import shortened
from fedran.federation.protocol.limits import WARN_DAYS
from fedran.federation.status.model import ACCEPTED, Status, TaskStatus
from fedran.wire.sizes import human_bytes

NOTHING = "-"
AGREE = (
    "agree: share of a site's rows that all other sites would label as it does. Wrong labels, or "
    "rows unlike those of the others, make it low."
)


def format_label(value: str | int) -> str:
    """A class label. Text that looks like a number is quoted, because "1" is not 1.

    >>> format_label(1), format_label("1"), format_label("cat")
    ('1', '"1"', 'cat')
    """
    return f'"{value}"' if isinstance(value, str) and value.lstrip("-").isdigit() else str(value)


def format_bytes(n: int | None) -> str:
    """A number of bytes in a readable unit."""
    return NOTHING if n is None else human_bytes(n)


def format_percent(share: float | None) -> str:
    """0.934 -> ``93.4 %``."""
    return NOTHING if share is None else f"{100 * share:.1f} %"


def format_age(seconds: float | None) -> str:
    """How long ago something happened.

    >>> format_age(5), format_age(200), format_age(90_000), format_age(None)
    ('5 s ago', '3 min ago', '1 d ago', '-')
    """
    return NOTHING if seconds is None else f"{format_duration(seconds)} ago"


def format_duration(seconds: float) -> str:
    """A duration in its largest whole unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def format_count(n: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> format_count(1, "upload"), format_count(3000, "upload"), format_count(2, "class", "classes")
    ('1 upload', '3,000 uploads', '2 classes')
    """
    return f"{n:,} {singular if n == 1 else plural or singular + 's'}"


def format_uploads(task: TaskStatus) -> str:
    """From how many sites uploads of a task were accepted, and what became of the others."""
    others = defaultdict[str, list[str]](list)
    for client, outcome in sorted(task.answers.items()):
        others[outcome] += [] if outcome in ACCEPTED else [client]
    told = [f"{outcome}: {shortened(sites, 5)}" for outcome, sites in others.items() if sites]
    return "; ".join([f"{task.accepted} of {len(task.answers)}", *told])


def format_answers(task: TaskStatus) -> str:
    """How many sites have answered in an open task, and how many uploads it needs."""
    needed = f", at least {task.min_clients} needed" if task.min_clients else ""
    asked = len(task.answers)
    return f"{asked - task.missing} of {asked} sites answered{needed}"


def describe_head(status: Status) -> str:
    """The classifier: its classes, where it comes from, and what the points say about it."""
    head = status.head
    if head is None:
        return "none yet"
    classes = format_count(head.classes, "class", "classes")
    age = format_age(status.at - head.at)
    if status.client:  # only the server knows more
        return f"{classes}, received {age}"
    told = f"{classes}, solved {age} after {head.task or 'late uploads'}"
    if status.left_out is None:
        return told
    return f"{told}, leave-one-out agreement {format_percent(status.left_out)}"


def facts(status: Status) -> list[tuple[str, str, str]]:
    """Connection, uploads, disk and certificate: the name of each, its value, and details."""
    if status.client:
        checked = f"checked {format_age(status.at - status.checked)}" if status.checked else ""
        found = [("connection", status.connection, checked)]
    else:
        moved = f", {format_bytes(status.transport)} at the transport" * bool(status.transport)
        members = sum(bool(site.key) for site in status.sites)
        connected = (
            "unknown" if status.connected is None else f"{status.connected} of {members} sites"
        )
        found = [("connected", connected, "")]
        uploads = "unreadable" if status.records is None else format_count(status.records, "upload")
        found += [("uploads", uploads, f"{format_bytes(status.payload)} received{moved}")]
    free = f"{format_bytes(status.disk_free)} free"
    found += [("disk", format_bytes(status.disk_bytes), free)]
    if status.certificate_expires is not None:
        left = status.certificate_expires - status.at
        soon = "`fedran federation renew` at the server renews it" * (left < 86400 * WARN_DAYS)
        found += [("certificate", f"{format_duration(left)} left", soon)]
    return found
