"""A status as text in a terminal of at least 80 columns. Text from other machines is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedran.federation.protocol.limits import SHOWN_ITEMS
from fedran.federation.status.format import (
    AGREE,
    NOTHING,
    describe_head,
    facts,
    format_age,
    format_answers,
    format_bytes,
    format_duration,
    format_percent,
    format_uploads,
)
from fedran.federation.status.model import Outcome, Status


def print_status(status: Status, console: Console) -> None:
    """Print the status of a server or of a site."""
    state = "[green]running[/]" if status.running else "[red]not running[/]"
    name = escape(status.federation)
    who = f"[bold]{escape(status.client)}[/] of {name}  site" if status.client else ""
    console.print(f"{who or f'[bold]{name}[/]  server'} {state}")
    overview = Table.grid(padding=(0, 2))
    accuracy = ""
    if status.head is not None and status.head.accuracy is not None:
        accuracy = f"accuracy {format_percent(status.head.accuracy)}"
    for title, value, details in [*facts(status), ("classifier", accuracy, describe_head(status))]:
        overview.add_row(f"[dim]{title}[/]", escape(", ".join(filter(None, (value, details)))))
    console.print(overview)
    for finding in status.findings:
        style = "bold red" if finding.level == "problem" else "yellow"
        console.print(f"[{style}]{escape(f'{finding.text} {finding.remedy}'.strip())}[/]")
    for task in status.open_tasks:
        left = "" if task.ends is None else f", {format_duration(task.ends - status.at)} left"
        title = f"\n[bold]Task {escape(task.task)} is open[/]"
        console.print(f"{title}: {format_answers(task)}{left}")
    _print_outcomes("[bold red]Not in the classifier[/]", status.set_aside, status.at, console)
    if status.client:
        _print_outcomes("[bold]Uploads[/]", status.uploads, status.at, console)
        if not status.uploads:
            console.print("\nno upload was made yet")
    else:
        _print_tasks(status, console)
    if status.roster or status.budget:
        _print_sums(status, console)
    if not status.client:
        _print_sites(status, console)
    problems, more = status.problems[:SHOWN_ITEMS], len(status.problems) - SHOWN_ITEMS
    _print_outcomes("[bold]Not accepted[/]", problems, status.at, console)
    if more > 0:
        console.print(f"  and {more} more; --json prints all")


def _print_outcomes(title: str, outcomes: Iterable[Outcome], now: float, console: Console) -> None:
    """What became of uploads, or of sites, each with the commands that decide about it."""
    for number, found in enumerate(outcomes):
        if not number:
            console.print(f"\n{title}")
        signed = "" if found.verified else " (not signed)"
        times = f", {found.times} times" if found.times > 1 else ""
        age = "" if found.at is None else f" {format_age(now - found.at)}"
        who = [f"[bold]{escape(found.client)}[/]{signed}"] if found.client else []
        who += [escape(f"task {found.task}")] if found.task else []
        told = f"{found.state}{age}{times}" + (f": {found.reason}" if found.reason else "")
        _print_indented(", ".join([*who, escape(told)]), console)
        for command in found.commands:
            console.print(f"    {escape(command)}", soft_wrap=True)


def _print_tasks(status: Status, console: Console) -> None:
    table = _table("task", "state", "uploads", right=("payload", "transport", "accuracy"))
    for task in status.tasks:
        moved = format_bytes(task.transport or None)
        numbers = format_bytes(task.payload), moved, format_percent(task.accuracy)
        table.add_row(escape(task.task), task.state, escape(format_uploads(task)), *numbers)
    console.print("\n[bold]Tasks[/]")
    console.print(table if status.tasks else "  no task was opened yet")


def _print_sums(status: Status, console: Console) -> None:
    """Secure sums, and the roster that people compare."""
    console.print("\n[bold]Secure sums[/]")
    for sentence in (status.budget, *status.sums):
        if sentence:
            _print_indented(escape(sentence), console)
    if status.roster:
        console.print(f"  roster {status.roster}")
        table = _table("  site", "fingerprint of its key", "")
        for site in status.sites:
            if site.key:
                table.add_row(f"  {escape(site.client)}", site.key, f"[bold red]{site.mark}[/]")
        console.print(table)


def _print_sites(status: Status, console: Console) -> None:
    connected = {True: "[green]yes[/]", False: "[red]no[/]", None: "unknown"}
    judged = any(site.agreement is not None for site in status.sites)
    table = _table("site", "connected", "last seen", right=("uploads", "bytes", "rows", "agree"))
    for site in status.sites:
        table.add_row(
            escape(site.client),
            site.mark or connected[site.connected],
            format_age(None if site.last_seen is None else status.at - site.last_seen),
            str(site.uploads),
            format_bytes(site.bytes),
            NOTHING if site.rows is None else f"{site.rows:,}",
            format_percent(site.agreement),
        )
    console.print("\n[bold]Sites[/]")
    console.print(table if status.sites else "  no site is known; `fedran federation add` adds one")
    if judged:
        _print_indented(AGREE, console)


def _print_indented(markup: str, console: Console) -> None:
    console.print(Padding(markup, (0, 0, 0, 2)))


def _table(*left: str, right: Sequence[str] = ()) -> Table:
    """A table without lines; the columns named in ``right`` contain numbers."""
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="dim", padding=(0, 1))
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", overflow="fold")
    return table
