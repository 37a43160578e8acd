"""Pieces of HTML; what is foreign is escaped here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NewType

from fedran.federation.status.format import NOTHING, amount

Html = NewType("Html", str)
"""Text that is safe in a page; ``text`` makes it of anything."""
STATES = {
    "open": "busy",
    "complete": "good",
    "quorum": "good",
    "short": "warn",
    "interrupted": "bad",
    "running": "good",
    "not running": "bad",
    "quarantined": "warn",
    "refused": "bad",
    "declined": "soft",
}


def text(value: object) -> Html:
    """Anything as text, escaped.

    >>> text("<script>alert('1')</script>")
    '&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;'
    """
    return Html(escape(str(value)))


def table(names: Sequence[str], rows: Iterable[Sequence[Html]], empty: str) -> Html:
    """``#name`` is a column of numbers, ``*name`` of sentences; on a phone a row is a card."""
    kinds = [{"#": "num", "*": "wide"}.get(n[0], "") for n in names]
    plain = [n.lstrip("#*") for n in names]
    heads = "".join(
        f'<th scope="col" class="{k}">{n}</th>' for n, k in zip(plain, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{k}" data-name="{n}"><span>{cell}</span></td>'
            for n, k, cell in zip(plain, kinds, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    if not body:
        return Html(f'<p class="note">{text(empty)}</p>')
    return Html(
        f'<div class="scroll" tabindex="0"><table class="list"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def section(name: str, title: str, body: Html, hint: str = "") -> Html:
    """A part of the page that the script replaces as a whole."""
    below = f'<p class="note">{text(hint)}</p>' if hint else ""
    return Html(f'<section id="{name}"><h2>{title}</h2>{body}{below}</section>\n')


def when(at: float | None) -> Html:
    """An exact time, which the script turns into an age."""
    if at is None:
        return Html(NOTHING)
    exact = datetime.fromtimestamp(at, UTC)
    shown = f"{exact:%Y-%m-%d %H:%M:%S} UTC"
    return Html(f'<time datetime="{exact.isoformat()}" data-at="{at:.0f}">{shown}</time>')


def size(n: int | None) -> Html:
    """Bytes, exact on hover."""
    return Html(f'<span title="{n:,} bytes">{amount(n)}</span>') if n else text(amount(n))


def badge(word: str) -> Html:
    """A state in its colour."""
    return Html(f'<span class="badge {STATES.get(word, "soft")}">{text(word)}</span>')


def chip(word: str, kind: str, why: str) -> Html:
    """A name in a colour, and why on hover."""
    return Html(f'<span class="badge {kind}" title="{text(why)}">{text(word)}</span> ')


def dot(connected: bool | None) -> Html:
    """Whether a site is connected."""
    word = {True: "yes", False: "no", None: "unknown"}[connected]
    return Html(f'<span class="dot {word}">{word}</span>')
