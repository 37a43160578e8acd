"""Numbers and times of a status as text, for the terminal and the page."""

from __future__ import annotations

from collections import Counter

from fedran.core.errors import shortened
from fedran.federation.status.model import ACCEPTED, TaskStatus
from fedran.wire.sizes import human_bytes

NOTHING = "-"


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


def format_origin(task: str) -> str:
    """After what a head was solved: a task, late uploads, or a command noted in place of the task.

    >>> format_origin("may"), format_origin(""), format_origin("forget")
    ('task may', 'late uploads', 'the command forget')
    """
    if task in ("forget", "release"):
        return f"the command {task}"
    return f"task {task}" if task else "late uploads"


def format_uploads(task: TaskStatus) -> str:
    """From how many sites uploads of a task were accepted, and what became of the others."""
    numbers = Counter(task.answered.values())
    numbers["had nothing to send"] = len(task.declined) - len(task.failed)
    parts = [f"{task.accepted} of {task.asked}"]
    parts += [f"{n} {what}" for what, n in numbers.items() if n and what not in ACCEPTED]
    if task.failed:
        parts.append(f"{shortened(task.failed, 5)} failed")
    if task.missing:
        parts.append(f"missing {shortened(task.missing, 5)}")
    if task.waiting:
        parts.append(f"waiting for others: {shortened(task.waiting, 5)}")
    return ", ".join(parts)
