"""The status as one HTML page that fetches its own sections again; nothing else is loaded."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from fedran.core.labels import sort_key
from fedran.federation.status.format import NOTHING, answers, count, label, percent
from fedran.federation.status.html import (
    STATES,
    Html,
    badge,
    chip,
    dot,
    section,
    size,
    table,
    text,
    when,
)
from fedran.federation.status.reader import SiteStatus, Status, TaskStatus, Trouble

SHOWN = 60
"""Rows of classes before the rest is counted."""


def page(status: Status) -> bytes:
    """The whole page, its style and its script inside."""
    name = text(status.federation)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{name} · fedran federation</title>\n'
        f"<style>{_asset('page.css')}</style></head>\n<body>\n"
        '<p id="lost" role="status" hidden></p>\n'
        f"<main>\n{sections(status)}</main>\n"
        f"<script>{_asset('page.js')}</script>\n</body></html>\n"
    ).encode()


def policy() -> str:
    """The Content-Security-Policy: this style, this script, this server, nothing else."""
    return (
        f"default-src 'none'; style-src {_hash('page.css')}; script-src {_hash('page.js')}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def sections(status: Status) -> Html:
    """What changes: the page's script asks for it every two seconds."""
    parts = [_top(status)]
    parts += [_open(t) for t in status.open_tasks]
    parts += [_waiting(status.waiting)] if status.waiting else []
    parts += [_tasks(status.tasks), _sites(status.sites)]
    parts += [_classes(status.sites)] if any(s.classes for s in status.sites) else []
    parts += [_troubles(status.troubles)]
    return Html("".join(parts))


def _top(s: Status) -> Html:
    known = Html("unknown" if s.nodes is None else f"{count(s.nodes, 'node')} ")
    looked = Html("") if s.nodes is None else when(s.checked)
    wire = Html(
        "not measured yet" if s.transport is None else f"{size(s.transport)} measured on the wire"
    )
    facts = [
        ("server", badge(s.server)),
        ("connected", Html(f"{known}<small>{looked}</small>")),
        ("uploads received", Html(f"{size(s.payload)} <small>{wire}</small>")),
        ("journal", _journal(s)),
    ]
    if s.head is None:
        facts.append(("classifier", text("none yet")))
    else:
        newest = (
            f"after {text(s.head.task or 'late uploads')}, {when(s.head.at)}, {size(s.head.bytes)}"
        )
        on = "no validation set" if s.head.accuracy is None else "on the validation set"
        classes = text(count(s.head.classes, "class", "classes"))
        facts += [
            ("classifier", Html(f"{classes} <small>{newest}</small>")),
            ("accuracy", Html(f"{percent(s.head.accuracy)} <small>{on}</small>")),
        ]
    items = "".join(f"<div><dt>{text(name)}</dt><dd>{value}</dd></div>" for name, value in facts)
    notes = "".join(f'<p class="note warn">{text(n)}</p>' for n in s.notes)
    title = f"<h1>{text(s.federation)}</h1><p class=soft>{text(s.folder)}</p>"
    return Html(f'<section id="top">{title}<dl class="facts">{items}</dl>{notes}</section>\n')


def _journal(s: Status) -> Html:
    uploads = "unreadable" if s.records is None else count(s.records, "upload")
    return Html(f"{text(uploads)} <small>{size(s.disk_bytes)} on disk</small>")


def _open(t: TaskStatus) -> Html:
    left = Html(f'<time data-until="{t.ends:.0f}"></time>') if t.ends else Html("")
    need = f", at least {t.min_clients} needed" if t.min_clients else ""
    people = [chip(c, STATES.get(o, "good"), o) for c, o in sorted(t.answered.items())]
    people += [chip(c, "soft", r) for c, r in t.told.items()]
    people += [chip(c, "soft", "no answer yet") for c in t.missing]
    told = "".join(
        f"<li>{text(c)} has nothing to send: “{text(r)}” <small>(not signed)</small></li>"
        for c, r in t.told.items()
    )
    return Html(
        f'<section id="open-{text(t.task)}" class="card"><h2>Task {text(t.task)} is open</h2>'
        f'<p><progress max="{max(t.asked, 1)}" value="{len(t.answered)}"></progress> '
        f"{len(t.answered)} of {t.asked} sites answered{text(need)}. {left}</p>"
        f'<p class="chips">{"".join(people)}</p>{f"<ul>{told}</ul>" if told else ""}</section>\n'
    )


def _waiting(troubles: Sequence[Trouble]) -> Html:
    items = "".join(
        f"<li><b>{text(t.client)}</b>, task {text(t.task)}, {when(t.at)}: {text(t.reason)}"
        f"<pre>{text(t.command)}</pre></li>"
        for t in troubles
    )
    return Html(
        '<section id="waiting" class="card attention"><h2>Put aside, waiting for you</h2>'
        f"<ul>{items}</ul></section>\n"
    )


def _tasks(tasks: Sequence[TaskStatus]) -> Html:
    rows = [
        [
            Html(f"<b>{text(t.task)}</b>"),
            badge(t.state),
            when(t.opened),
            text(answers(t)),
            text(f"{t.rows:,}"),
            size(t.payload),
            _transport(t),
            text(percent(t.accuracy)),
        ]
        for t in tasks
    ]
    names = [
        "task",
        "verdict",
        "opened",
        "*uploads",
        "#rows",
        "#payload",
        "#transport",
        "#accuracy",
    ]
    hint = (
        "Payload: the envelopes that came for this task. Transport: all bytes that Flower measured "
        "in its runs; what goes out is mostly the classifier, once to each site."
    )
    return section("tasks", "Tasks", table(names, rows, "No task was opened yet."), hint)


def _transport(t: TaskStatus) -> Html:
    if t.transport_in is None or t.transport_out is None:
        return size(t.transport)
    ways = f"{size(t.transport_in)} in, {size(t.transport_out)} out"
    return Html(f"{size(t.transport)}<br><small>{ways}</small>")


def _sites(sites: Sequence[SiteStatus]) -> Html:
    rows = [
        [
            Html(
                f"<b>{text(s.client)}</b>" + ("" if s.in_roster else " " + badge("not in roster"))
            ),
            dot(s.connected),
            when(s.last_seen),
            text(s.uploads if not s.members else f"{s.uploads}, sums of {s.members}"),
            text(s.newest_task or NOTHING),
            size(s.bytes),
            text(f"{s.rows:,}"),
            text(len(s.classes)),
        ]
        for s in sites
    ]
    names = [
        "site",
        "connected",
        "last seen",
        "#uploads",
        "newest task",
        "#bytes",
        "#rows",
        "#classes",
    ]
    return section("sites", "Sites", table(names, rows, "The roster is empty."))


def _classes(sites: Sequence[SiteStatus]) -> Html:
    """Rows of each class at each site; darker is more."""
    held = [(s.client, dict(s.classes)) for s in sites if s.classes]
    totals: dict[str | int, int] = {}
    for _, classes in held:
        for c, n in classes.items():
            totals[c] = totals.get(c, 0) + n
    shown = sorted(sorted(totals, key=totals.__getitem__, reverse=True)[:SHOWN], key=sort_key)
    most = max(n for _, classes in held for n in classes.values())
    heads = "".join(f'<th scope="col">{text(client)}</th>' for client, _ in held)
    rows = "".join(
        f'<tr><th scope="row">{text(label(c))}</th><td>{totals[c]:,}</td>'
        + "".join(_heat(classes.get(c, 0), most) for _, classes in held)
        + "</tr>"
        for c in shown
    )
    rest = len(totals) - SHOWN
    matrix = Html(
        '<div class="scroll fit" tabindex="0"><table class="matrix"><thead><tr><th>class</th>'
        f"<th>all</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    more = f"{rest} smaller classes are not shown; --json has all." if rest > 0 else ""
    hint = f"Rows in the uploads that are in. {more}"
    return section("classes", "Classes by site", matrix, hint)


def _heat(n: int, most: int) -> str:
    return f'<td class="h{-(-5 * n // most)}">{f"{n:,}" if n else ""}</td>'


def _troubles(troubles: Sequence[Trouble]) -> Html:
    rows = [
        [
            when(t.at),
            Html(f"<b>{text(t.client)}</b>" + ("" if t.verified else " <small>unsigned</small>")),
            text(t.task),
            Html(badge(t.outcome) + (f" <small>{t.times} times</small>" if t.times > 1 else "")),
            text(t.reason),
        ]
        for t in troubles
    ]
    names = ["when", "site", "task", "what", "*why"]
    hint = "Unsigned: no key of that site stands behind it, anyone may have used its name."
    body = table(names, rows, "Nothing was refused or put aside.")
    return section("troubles", "Not taken in", body, hint if rows else "")


def _asset(name: str) -> str:
    return resources.files("fedran.federation.status").joinpath(name).read_text(encoding="utf-8")


def _hash(name: str) -> str:
    digest = hashlib.sha256(_asset(name).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
