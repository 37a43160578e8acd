"""A status as text in a terminal of at least 80 columns. Text from other machines is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedran.federation.protocol.limits import SHOWN_ITEMS
from fedran.federation.status.format import (
    NOTHING,
    format_age,
    format_bytes,
    format_count,
    format_duration,
    format_origin,
    format_percent,
    format_uploads,
)
from fedran.federation.status.model import Outcome, Status, TaskStatus


def print_status(status: Status, console: Console) -> None:
    """Print the status of a server or of a site."""
    for line in _overview(status):
        console.print(line)
    if status.certificate_expires is not None:
        left = max(0.0, status.certificate_expires - status.at)
        console.print(f"certificate expires in {format_duration(left)}")
    for finding in status.findings:
        style = "bold red" if finding.level == "problem" else "yellow"
        console.print(f"[{style}]{escape(f'{finding.text} {finding.remedy}'.strip())}[/]")
    for task in status.open_tasks:
        _print_open_task(task, status.at, console)
    if status.set_aside:
        console.print("\n[bold red]Not in the classifier[/]")
        for found in status.set_aside:
            text = f"[bold]{escape(found.client)}[/] {found.state}: {escape(found.reason)}"
            _print_indented(text, console)
            _print_commands(found, console)
    if status.client:
        console.print("\n[bold]Uploads[/]" if status.uploads else "\nno upload was made yet")
        _print_outcomes(status.uploads, status.at, console)
    else:
        _print_tasks(status.tasks, console)
    if status.roster or status.budget:
        _print_sums(status, console)
    if not status.client:
        _print_sites(status, console)
    problems = status.problems
    if problems:
        console.print("\n[bold]Not accepted[/]")
        _print_outcomes(problems[:SHOWN_ITEMS], status.at, console)
    if len(problems) > SHOWN_ITEMS:
        console.print(f"  and {len(problems) - SHOWN_ITEMS} more; --json prints all")


def _overview(status: Status) -> list[str]:
    """Whether it runs, its connections, its disk and its classifier."""
    state = "[green]running[/]" if status.running else "[red]not running[/]"
    age = None if status.checked is None else status.at - status.checked
    checked = "" if age is None else f" (checked {format_age(age)})"
    disk = f"{format_bytes(status.disk_bytes)} on disk, {format_bytes(status.disk_free)} free"
    federation = escape(status.federation)
    if status.client:
        before = "" if status.running or age is None else "when it ran last: "
        lines = [
            f"[bold]{escape(status.client)}[/] of {federation}  site {state}",
            f"{before}{escape(status.connection)}{checked}",
            f"uploads and state {disk}",
        ]
    else:
        nodes = "" if status.nodes is None else f", {format_count(status.nodes, 'node')} connected"
        records = "unreadable" if status.records is None else format_count(status.records, "upload")
        measured = f", {format_bytes(status.transport)} at the transport" * bool(status.transport)
        lines = [
            f"[bold]{federation}[/]  server {state}{nodes}{checked if nodes else ''}",
            f"uploads received {format_bytes(status.payload)}{measured}",
            f"database {records}, {disk}",
        ]
    if (head := status.head) is None:
        return [*lines, "no classifier yet"]
    origin, age = f"after {escape(format_origin(head.task))}", status.at - head.at
    accuracy = f", accuracy {format_percent(head.accuracy)}"
    if status.left_out is not None:
        name = "accuracy" if status.single_rows else "agreement"
        accuracy += f", leave-one-out {name} {format_percent(status.left_out)}"
    if status.client:  # only the server knows these
        origin, accuracy = "received", ""
    classes = format_count(head.classes, "class", "classes")
    return [*lines, f"classifier {classes}, {origin} {format_age(age)}{accuracy}"]


def _print_open_task(task: TaskStatus, now: float, console: Console) -> None:
    needed = f", at least {task.min_clients} needed" if task.min_clients else ""
    left = "" if task.ends is None else f", {format_duration(task.ends - now)} left"
    answered = f"{len(task.answered)} of {task.asked} sites answered"
    console.print(f"\n[bold]Task {escape(task.task)} is open[/]: {answered}{needed}{left}")


def _print_outcomes(outcomes: Sequence[Outcome], now: float, console: Console) -> None:
    """Uploads that were not accepted or wait for a decision, or those of a site itself."""
    for found in outcomes:
        signed = "" if found.verified else " (not signed)"
        times = f", {found.times} times" if found.times > 1 else ""
        who = f"[bold]{escape(found.client)}[/]{signed}, " if found.client else ""
        age = "" if found.at is None else f", {format_age(now - found.at)}"
        reason = f": {found.reason}" if found.reason else ""
        told = escape(f"task {found.task}{age}: {found.state}{times}{reason}")
        _print_indented(f"{who}{told}", console)
        _print_commands(found, console)


def _print_commands(found: Outcome, console: Console) -> None:
    for command in found.commands:
        console.print(f"    {escape(command)}", soft_wrap=True)


def _print_tasks(tasks: Sequence[TaskStatus], console: Console) -> None:
    table = _table("task", "state", "uploads", right=("payload", "transport", "accuracy"))
    for task in tasks:
        moved = format_bytes(task.received + task.sent or None)
        numbers = format_bytes(task.payload), moved, format_percent(task.accuracy)
        table.add_row(escape(task.task), task.state, escape(format_uploads(task)), *numbers)
    console.print("\n[bold]Tasks[/]")
    console.print(table if tasks else "  no task was opened yet")


def _print_sums(status: Status, console: Console) -> None:
    """Secure sums: the roster that people compare, who is in each sum, and what is under way."""
    console.print("\n[bold]Secure sums[/]")
    if status.budget:
        _print_indented(status.budget, console)
    lines = [f"task {found.task}, {found.reason}" for found in status.sums]
    for cohort in reversed(status.cohorts):
        members = ", ".join(cohort.members)
        lines.append(f"task {cohort.task}, {cohort.client}: {members} ({cohort.rows:,} rows)")
    for line in lines:
        _print_indented(escape(line), console)
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
    right = ("uploads", "bytes", "rows", *["agree"] * judged)
    table = _table("site", "connected", "last seen", "newest task", right=right)
    sites = status.sites
    cohorts = {cohort.client for cohort in status.cohorts}
    for site in sites:
        outside = "cohort" if site.client in cohorts else "not in roster"
        table.add_row(
            escape(site.client),
            connected[site.connected] if site.in_roster else outside,
            format_age(None if site.last_seen is None else status.at - site.last_seen),
            escape(site.newest_task or NOTHING),
            str(site.uploads),
            format_bytes(site.bytes),
            NOTHING if site.rows is None else f"{site.rows:,}",
            *[format_percent(site.agreement)] * judged,
        )
    console.print("\n[bold]Sites[/]")
    console.print(table if sites else "  no site is known; `fedran federation add` adds one")
    if judged:
        console.print(
            "  agree: share of a site's rows that all other sites would label as it does."
        )
        console.print("  Wrong labels, or rows unlike those of the others, make it low.")


def _print_indented(markup: str, console: Console) -> None:
    console.print(Padding(markup, (0, 0, 0, 2)))


def _table(*left: str, right: tuple[str, ...] = ()) -> Table:
    """A table without lines; the columns named in ``right`` contain numbers."""
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="dim", padding=(0, 1))
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", overflow="fold")
    return table
