"""The state of a site as text in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from fedran.core.errors import shortened
from fedran.federation.site.report import SiteReport
from fedran.federation.status.format import format_age, format_bytes, format_label

MAX_CLASSES = 8


def print_site(report: SiteReport, console: Console) -> None:
    """Print the state of a site. Text from other machines is escaped."""
    colour, state = ("green", "running") if report.running else ("red", "not running")
    name = f"[bold]{escape(report.client)}[/] of {escape(report.federation)}"
    console.print(f"{name}  site [{colour}]{state}[/]")
    if report.connection:
        age = None if report.last_contact is None else report.at - report.last_contact
        console.print(f"{escape(report.connection)} (checked {format_age(age)})")
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
    for found in report.sums:
        if found.code == "refused":
            console.print(
                f"  [bold]{escape(found.task)}[/]: [bold red]this site refuses[/], and tells the "
                f"server no reason: {escape(found.reason)}. `fedran federation repeat` tries again",
                soft_wrap=True,
            )
            continue
        members = f", sum of {', '.join(found.members)}" if found.members else ""
        console.print(
            f"  [bold]{escape(found.task)}[/]: secure sum, attempt {found.attempt}, "
            f"{escape(found.code)}, answered up to {found.stage}{escape(members)}"
        )
    if report.epsilon is not None:
        console.print(
            f"a person with rows in all these sums has spent epsilon {report.epsilon:.3g}, by this "
            "site's own record"
        )
    if report.sums and not report.tasks:
        return
    console.print("\n[bold]Uploads[/]" if report.tasks else "\nno upload was made yet")
    for task in report.tasks:
        console.print(
            f"  [bold]{escape(task.task)}[/]: {escape(task.code)}, {format_bytes(task.bytes)}, "
            f"made {format_age(report.at - task.made)}"
        )
        for what, classes in (("contains", task.classes), ("withheld", task.withheld)):
            if classes:
                shown = shortened([f"{format_label(c)} ({n:,})" for c, n in classes], MAX_CLASSES)
                console.print(f"    {what}: {escape(shown)}")
        if task.reason:
            console.print(f"    {escape(task.reason)}", soft_wrap=True)
