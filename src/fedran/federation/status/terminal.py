"""The status of a server, and that of a site, as text in a terminal of at least 80 columns."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedran.core.errors import shortened
from fedran.federation.protocol.identity import is_cohort
from fedran.federation.server.influence import InfluenceTable
from fedran.federation.site.report import SiteReport
from fedran.federation.status.format import (
    NOTHING,
    format_age,
    format_bytes,
    format_count,
    format_duration,
    format_label,
    format_origin,
    format_percent,
    format_uploads,
)
from fedran.federation.status.model import (
    Problem,
    SiteStatus,
    Status,
    TaskStatus,
)

MAX_SITES = 60
"""Sites that are listed. The rest is counted."""
MAX_SHOWN = 8
"""Classes per site or upload, and problems, that are listed. The rest is counted."""


def print_status(status: Status, console: Console) -> None:
    """Print a status. Text from other machines is escaped."""
    _print_overview(status, console)
    for task in status.open_tasks:
        _print_open_task(task, status.at, console)
    if status.quarantine:
        console.print("\n[bold yellow]In quarantine, waiting for your decision[/]")
    for upload in status.quarantine:
        _print_problem(upload, escape(upload.reason), status.at, console)
        for command in (upload.command, upload.other_command):
            console.print(f"    {escape(command)}", soft_wrap=True)
    if status.held is not None:
        console.print("\n[bold red]The newest classifier is held back[/]")
        _print_indented(escape(status.held.reason), console)
        for command in status.held.commands:
            console.print(f"    {escape(command)}", soft_wrap=True)
    _print_tasks(status.tasks, console)
    _print_sums(status, console)
    if status.influence is not None:
        measured = format_age(status.at - status.influence.at)
        console.print(f"\n[bold]Accuracy without each site[/] (measured {measured})")
        print_influence(status.influence, console)
    _print_sites(status.sites, status.at, console)
    problems = [p for p in status.problems if p.outcome != "quarantined"]
    if problems:
        console.print("\n[bold]Not accepted[/]")
    for problem in problems[:MAX_SHOWN]:
        times = f", {problem.times} times" if problem.times > 1 else ""
        reason = escape(f"{problem.outcome}{times}: {problem.reason}")
        _print_problem(problem, reason, status.at, console)
    if len(problems) > MAX_SHOWN:
        console.print(f"  and {len(problems) - MAX_SHOWN} more; --json prints all")


def print_influence(found: InfluenceTable, console: Console) -> None:
    """Print the accuracy without each site or upload."""
    table = _table("without", "task", right=("rows", "accuracy", "gain", "by replay"))
    for line in found.lines:
        table.add_row(
            escape(line.client),
            escape(line.task or "all"),
            f"{line.rows:,}",
            format_percent(line.without),
            f"{line.gain:+.1f}",
            format_percent(line.replayed),
        )
    table.add_row("(nobody)", "", "", format_percent(found.accuracy), "", "")
    console.print(table)


def _print_overview(status: Status, console: Console) -> None:
    colour = "green" if status.server == "running" else "red"
    nodes = ""
    if status.nodes is not None and status.checked is not None:
        checked = format_age(status.at - status.checked)
        nodes = f", {format_count(status.nodes, 'node')} connected (checked {checked})"
    console.print(
        f"[bold]{escape(status.federation)}[/]  server [{colour}]{status.server}[/]{nodes}"
    )
    transport = ""
    if status.transport is not None:
        transport = f", {format_bytes(status.transport)} at the transport"
    console.print(f"uploads received {format_bytes(status.payload)}{transport}")
    records = "unreadable" if status.records is None else format_count(status.records, "upload")
    console.print(f"database {records}, {format_bytes(status.disk_bytes)} on disk")
    head = status.head
    if head is None:
        console.print("no classifier yet")
    else:
        console.print(
            f"classifier {format_count(head.classes, 'class', 'classes')}, "
            f"after {escape(format_origin(head.task))} "
            f"{format_age(status.at - head.at)}, accuracy {format_percent(head.accuracy)}"
        )
    if status.certificate_expires is not None:
        left = max(0.0, status.certificate_expires - status.at)
        console.print(f"certificate expires in {format_duration(left)}")
    for note in status.notes:
        console.print(f"[yellow]{escape(note)}[/]")


def _print_open_task(task: TaskStatus, now: float, console: Console) -> None:
    needed = f", at least {task.min_clients} needed" if task.min_clients else ""
    left = "" if task.ends is None else f", {format_duration(task.ends - now)} left"
    console.print(
        f"\n[bold]Task {escape(task.task)} is open[/]: "
        f"{len(task.answered)} of {task.asked} sites answered{needed}{left}"
    )
    if task.answered:
        answers = (
            client if outcome in ("accepted", "duplicate") else f"{client} ({outcome})"
            for client, outcome in sorted(task.answered.items())
        )
        _print_indented(f"answered: {escape(', '.join(answers))}", console)
    if task.missing:
        _print_indented(f"missing: {escape(', '.join(task.missing))}", console)
    if task.waiting:
        _print_indented(f"waiting for others: {escape(', '.join(task.waiting))}", console)
    for client, reason in task.declined.items():
        how = "failed" if client in task.failed else "has nothing to send"
        _print_indented(escape(f"{client} {how}: {reason} (not signed)"), console)


def _print_problem(problem: Problem, reason: str, now: float, console: Console) -> None:
    signed = "" if problem.verified else " (not signed)"
    _print_indented(
        f"[bold]{escape(problem.client)}[/]{signed}, task {escape(problem.task)}, "
        f"{format_age(now - problem.at)}: {reason}",
        console,
    )


def _print_tasks(tasks: list[TaskStatus], console: Console) -> None:
    table = _table("task", "state", "uploads", right=("payload", "transport", "accuracy"))
    for task in tasks:
        table.add_row(
            escape(task.task),
            escape(task.state),
            escape(format_uploads(task)),
            format_bytes(task.payload),
            format_bytes(task.transport),
            format_percent(task.accuracy),
        )
    console.print("\n[bold]Tasks[/]")
    console.print(table if tasks else "  no task was opened yet")


def _print_sums(status: Status, console: Console) -> None:
    """Secure sums: who is in each, what is under way, and the fingerprint of the roster."""
    if not status.roster:
        return
    console.print("\n[bold]Secure sums[/]")
    console.print(f"  roster {status.roster}")
    if status.budget:
        _print_indented(status.budget, console)
    for opened in status.sums:
        line = f"task {opened.task}, attempt {opened.number}: {opened.text}"
        _print_indented(escape(line), console)
    for cohort in reversed(status.cohorts):
        members = ", ".join(cohort.members)
        line = f"task {cohort.task}, {cohort.cohort}: {members} ({cohort.rows:,} rows)"
        _print_indented(escape(line), console)


def _print_sites(sites: list[SiteStatus], now: float, console: Console) -> None:
    connected = {True: "[green]yes[/]", False: "[red]no[/]", None: "unknown"}
    columns = ("site", "connected", "last seen", "newest task")
    table = _table(*columns, right=("uploads", "bytes", "rows"))
    hidden, sites = len(sites) - MAX_SITES, sites[:MAX_SITES]
    for site in sites:
        outside = "cohort" if is_cohort(site.client) else "not in roster"
        table.add_row(
            escape(site.client),
            connected[site.connected] if site.in_roster else outside,
            format_age(None if site.last_seen is None else now - site.last_seen),
            escape(site.newest_task or NOTHING),
            str(site.uploads),
            format_bytes(site.bytes),
            NOTHING if site.rows is None else f"{site.rows:,}",
        )
    console.print("\n[bold]Sites[/]")
    console.print(table if sites else "  no site is known; `fedran federation add` adds one")
    if hidden > 0:
        console.print(f"  and {hidden} more; --json prints all")
    if any(site.classes for site in sites):
        console.print("\n[bold]Classes by site[/] (rows per class)")
    for site in sites:
        if site.classes:
            shown = shortened([f"{format_label(c)} ({n:,})" for c, n in site.classes], MAX_SHOWN)
            _print_indented(f"[bold]{escape(site.client)}[/]: {escape(shown)}", console)


def _print_indented(markup: str, console: Console) -> None:
    console.print(Padding(markup, (0, 0, 0, 2)))


def _table(*left: str, right: tuple[str, ...]) -> Table:
    """A table without lines; the columns named in ``right`` contain numbers."""
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="dim", padding=(0, 1))
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", overflow="fold")
    return table


def print_site(report: SiteReport, console: Console) -> None:
    """Print the state of a site. Text from other machines is escaped."""
    colour, state = ("green", "running") if report.running else ("red", "not running")
    name = f"[bold]{escape(report.client)}[/] of {escape(report.federation)}"
    console.print(f"{name}  site [{colour}]{state}[/]")
    if report.connection:
        age = None if report.last_contact is None else report.at - report.last_contact
        before = "" if report.running else "when it ran last: "
        console.print(f"{before}{escape(report.connection)} (checked {format_age(age)})")
    else:
        console.print(f"server {escape(report.server)}, never tried")
    if report.head_at is None:
        console.print("no classifier yet")
    else:
        age = report.at - report.head_at
        console.print(f"classifier {report.head_classes} classes, received {format_age(age)}")
    console.print(
        f"disk {format_bytes(report.disk_bytes)} used, {format_bytes(report.disk_free)} free"
    )
    console.print(", ".join(f"{name} {found}" for name, found in report.versions.items()))
    if report.ca_expires is not None:
        days = (report.ca_expires - report.at) / 86400
        console.print(f"ca.crt expires in {days:.0f} days")
    for alarm in report.alarms[-3:]:
        console.print(
            f"[bold red]ALARM[/] a run brought an app that is not fedran's, and was refused: "
            f"{escape(str(alarm.get('reason', '')))}"
        )
    if report.roster:
        console.print(f"roster {report.roster}")
    if report.roster_changed:
        console.print(
            "[bold red]The server shows another roster[/]: this site takes part in no secure sum "
            "until it is pinned; see `fedran federation roster`"
        )
    _print_own_sums(report, console)
    if report.tasks or not report.sums:
        _print_uploads(report, console)


def _print_own_sums(report: SiteReport, console: Console) -> None:
    """The part of a site in secure sums, and what its rows have spent."""
    for found in report.sums:
        if found.code == "refused":
            console.print(
                f"  [bold]{escape(found.task)}[/]: [bold red]this site refuses[/], and tells the "
                f"server no reason: {escape(found.reason)}. When rows or list are corrected:",
                soft_wrap=True,
            )
            command = ["fedran", "federation", "repeat", report.folder, found.task]
            console.print(f"    {escape(shlex.join(command))}", soft_wrap=True)
            continue
        members = f", sum of {', '.join(found.members)}" if found.members else ""
        console.print(
            f"  [bold]{escape(found.task)}[/]: secure sum, attempt {found.attempt}, "
            f"{escape(found.code)}, answered up to {found.stage}{escape(members)}"
        )
    if report.epsilon is not None:
        console.print(
            f"a person with one row in each of these sums has spent epsilon {report.epsilon:.3g}, "
            "by this site's own record"
        )


def _print_uploads(report: SiteReport, console: Console) -> None:
    """The uploads of a site, and what they contain."""
    console.print("\n[bold]Uploads[/]" if report.tasks else "\nno upload was made yet")
    for task in report.tasks:
        console.print(
            f"  [bold]{escape(task.task)}[/]: {escape(task.code)}, {format_bytes(task.bytes)}, "
            f"made {format_age(report.at - task.made)}"
        )
        for what, classes in (("contains", task.classes), ("withheld", task.withheld)):
            if classes:
                shown = shortened([f"{format_label(c)} ({n:,})" for c, n in classes], MAX_SHOWN)
                console.print(f"    {what}: {escape(shown)}")
        if task.reason:
            console.print(f"    {escape(task.reason)}", soft_wrap=True)
