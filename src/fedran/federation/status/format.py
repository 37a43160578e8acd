"""Numbers and times of a status as people read them, in a terminal and on a page."""

from __future__ import annotations

from fedran.federation.status.reader import TaskStatus
from fedran.wire.units import human_bytes

NOTHING = "-"


def label(value: str | int) -> str:
    """A class label; text that looks like a number is set in quotes, as "1" is not 1.

    >>> label(1), label("1"), label("cat")
    ('1', '"1"', 'cat')
    """
    return f'"{value}"' if isinstance(value, str) and value.lstrip("-").isdigit() else str(value)


def amount(n: int | None) -> str:
    """Bytes as people read them.

    >>> amount(1572864), amount(None)
    ('1.50 MiB', '-')
    """
    return NOTHING if n is None else human_bytes(n)


def percent(accuracy: float | None) -> str:
    """0.934 -> ``93.4 %``."""
    return NOTHING if accuracy is None else f"{100 * accuracy:.1f} %"


def age(seconds: float) -> str:
    """How long ago something was.

    >>> age(5), age(200), age(90_000)
    ('5 s ago', '3 min ago', '1 d ago')
    """
    return f"{span(seconds)} ago"


def span(seconds: float) -> str:
    """A duration in its largest whole unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def count(n: int, one: str, more: str | None = None) -> str:
    """``3 uploads``, ``1 upload``."""
    return f"{n:,} {one if n == 1 else more or one + 's'}"


def answers(t: TaskStatus) -> str:
    """How many uploads of a task are in, and what became of the others."""
    parts = [f"{t.uploads} of {t.asked}"]
    parts += [f"{t.quarantined} put aside"] if t.quarantined else []
    parts += [f"{t.refused} refused"] if t.refused else []
    parts += [f"{len(t.told)} had nothing to send"] if t.told else []
    parts += [f"missing {', '.join(t.missing[:5])}"] if t.missing else []
    return ", ".join(parts) + (" and more" if len(t.missing) > 5 else "")
