"""``fedran federation status``: where a federation stands, in the terminal or on a page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

if TYPE_CHECKING:  # they need cryptography, which comes with the extra `flower`
    from fedran.federation.status.reader import Reader, SiteStatus, Status, TaskStatus, Trouble

PORT = 8765
IN = ("accepted", "duplicate")
SHOWN = 8
"""Classes of a site, and uploads not taken in, before the rest is counted."""


def status(
    folder: Annotated[Path, typer.Argument(help="The federation's folder, or its server's.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Serve a page on this machine that refreshes itself.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes a free one.")
    ] = PORT,
) -> None:
    """Tasks, sites, bytes, accuracy, what was refused and why; only reads, at any time."""
    from fedran.federation.status.reader import Reader

    if as_json and web:
        raise ValueError("give --json or --web, not both")
    reader = Reader(folder)
    if web:
        _serve(reader, port)
    elif as_json:
        typer.echo(json.dumps(asdict(reader.read()), indent=2))
    else:
        _print(reader.read(), Console(highlight=False))


def _serve(reader: Reader, port: int) -> None:
    from fedran.federation.status.web import StatusServer

    with StatusServer(reader, port) as server:
        typer.echo(f"{server.url}  (for everyone on this machine; Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("")


def _print(s: Status, console: Console) -> None:
    _top(s, console)
    for task in s.open_tasks:
        _open(task, s.at, console)
    if s.waiting:
        console.print("\n[bold yellow]Put aside, waiting for you[/]")
    for trouble in s.waiting:
        _trouble(trouble, s.at, console)
        console.print(f"    {escape(trouble.command)}", soft_wrap=True)
    _tasks(s.tasks, console)
    _sites(s.sites, s.at, console)
    refused = [t for t in s.troubles if t.outcome != "quarantined"]
    if refused:
        console.print("\n[bold]Not taken in[/]")
    for trouble in refused[:SHOWN]:
        _trouble(trouble, s.at, console)
    if len(refused) > SHOWN:
        console.print(f"  and {len(refused) - SHOWN} more; --json has all")


def _top(s: Status, console: Console) -> None:
    from fedran.federation.status.format import age, amount, count, percent

    colour = "green" if s.server == "running" else "red"
    seen = "" if s.nodes is None or s.checked is None else f" (as of {age(s.at - s.checked)})"
    nodes = "" if s.nodes is None else f", {count(s.nodes, 'node')} connected{seen}"
    console.print(f"[bold]{escape(s.federation)}[/]  server [{colour}]{s.server}[/]{nodes}")
    wire = "" if s.transport is None else f", {amount(s.transport)} at the transport"
    console.print(f"uploads received {amount(s.payload)}{wire}")
    records = "unreadable" if s.records is None else count(s.records, "upload")
    console.print(f"journal {records}, {amount(s.disk_bytes)} on disk")
    if s.head is None:
        console.print("no classifier yet")
    else:
        after = f"task {s.head.task}" if s.head.task else "late uploads"
        console.print(
            f"classifier {count(s.head.classes, 'class', 'classes')}, after {escape(after)} "
            f"{age(s.at - s.head.at)}, accuracy {percent(s.head.accuracy)}"
        )
    for note in s.notes:
        console.print(f"[yellow]{escape(note)}[/]")


def _open(t: TaskStatus, now: float, console: Console) -> None:
    from fedran.federation.status.format import span

    need = f", at least {t.min_clients} needed" if t.min_clients else ""
    left = "" if t.ends is None else f", {span(t.ends - now)} left"
    console.print(
        f"\n[bold]Task {escape(t.task)} is open[/]: "
        f"{len(t.answered)} of {t.asked} sites answered{need}{left}"
    )
    if t.answered:
        told = (c if o in IN else f"{c} ({o})" for c, o in sorted(t.answered.items()))
        _indented(f"answered: {escape(', '.join(told))}", console)
    if t.missing:
        _indented(f"missing: {escape(', '.join(t.missing))}", console)
    for client, reason in t.told.items():
        _indented(escape(f"{client} has nothing to send: {reason} (not signed)"), console)


def _trouble(t: Trouble, now: float, console: Console) -> None:
    from fedran.federation.status.format import age

    times = f", {t.times} times" if t.times > 1 else ""
    signed = "" if t.verified else " (unsigned)"
    what = "" if t.waiting else f"{escape(t.outcome)}{times}: "
    _indented(
        f"[bold]{escape(t.client)}[/]{signed}, task {escape(t.task)}, {age(now - t.at)}: "
        f"{what}{escape(t.reason)}",
        console,
    )


def _tasks(tasks: list[TaskStatus], console: Console) -> None:
    from fedran.federation.status.format import amount, answers, percent

    table = _table("task", "verdict", "uploads", "#payload", "#transport", "#accuracy")
    for t in tasks:
        sizes = (amount(t.payload), amount(t.transport))
        table.add_row(
            escape(t.task), escape(t.state), escape(answers(t)), *sizes, percent(t.accuracy)
        )
    console.print("\n[bold]Tasks[/]")
    console.print(table if tasks else "  no task was opened yet")


def _sites(sites: list[SiteStatus], now: float, console: Console) -> None:
    from fedran.federation.status.format import NOTHING, age, amount

    connected = {True: "[green]yes[/]", False: "[red]no[/]", None: "unknown"}
    table = _table("site", "connected", "last seen", "#uploads", "#bytes", "#rows", "newest task")
    for s in sites:
        table.add_row(
            escape(s.client),
            connected[s.connected] if s.in_roster else "not in roster",
            NOTHING if s.last_seen is None else age(now - s.last_seen),
            str(s.uploads),
            amount(s.bytes),
            f"{s.rows:,}",
            escape(s.newest_task or NOTHING),
        )
    console.print("\n[bold]Sites[/]")
    console.print(table if sites else "  the roster is empty")
    if any(s.classes for s in sites):
        console.print("\n[bold]Classes by site[/], rows of each")
    for s in sites:
        if s.classes:
            _indented(f"[bold]{escape(s.client)}[/]: {escape(_classes(s))}", console)


def _classes(s: SiteStatus) -> str:
    from fedran.federation.status.format import label

    told = ", ".join(f"{label(c)} ({n:,})" for c, n in s.classes[:SHOWN])
    rest = len(s.classes) - SHOWN
    return f"{told} and {rest} more" if rest > 0 else told


def _indented(markup: str, console: Console) -> None:
    console.print(Padding(markup, (0, 0, 0, 2)))


def _table(*names: str) -> Table:
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="dim", padding=(0, 1))
    for name in names:
        table.add_column(
            name.lstrip("#"), justify="right" if name[0] == "#" else "left", overflow="fold"
        )
    return table
