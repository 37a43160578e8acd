"""Commands at a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedran.cli.federation.arguments import Insecure, SiteFolder, Task, find_site
from fedran.wire.sizes import human_bytes


def repeat(
    folder: SiteFolder,
    task: Task,
    another_sum: Annotated[
        bool,
        typer.Option(
            "--another-sum",
            help="Take part in one more sum of the task, with any sites, although this site's rows "
            "may be in one already.",
        ),
    ] = False,
) -> None:
    """Add rows that this site refused, or agree to another secure sum of a task.

    The second is needed after another site was forgotten, or after this site corrected its rows.
    Whoever has seen both sums knows the difference between them.
    """
    from fedran.federation.ops.sums import repeat_sum

    earlier = repeat_sum(find_site(folder), task, another=another_sum)
    if another_sum:
        typer.echo(f"this site takes part in one more sum of {task}, with any sites;")
        typer.echo("whoever has seen both sums knows the difference between them")
        return
    typer.echo(f"this site tries again to add its rows of {task}, when the server's owner runs")
    typer.echo(f"`fedran federation task` for {task} again")
    for members in earlier:
        typer.echo(f"its rows may be in a sum of {', '.join(members)} already")
    if earlier:
        typer.echo("so it takes part with these sites only. --another-sum allows others, and tells")
        typer.echo("whoever sees both sums the numbers of the sites that are in one of them only")


def check(
    folder: SiteFolder,
    task: Task,
    offer: Annotated[
        Path | None,
        typer.Option(help="The server's offer as a file. Default: the last one that came."),
    ] = None,
) -> None:
    """Check a task's rows before they are sent: width, type, NaN, sign, scale, class names.

    The exit code is 1 if the site or the server would refuse the rows.
    """
    from fedran.federation.protocol.messages import Offer
    from fedran.federation.site.check import check_task

    given = None if offer is None else Offer.load(offer)
    findings = check_task(find_site(folder), task, given)
    for finding in findings:
        typer.echo(f"{finding.level}: {finding.text}")
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


def revise(folder: SiteFolder, task: Task) -> None:
    """Replace the upload of a task by one of its present rows, to withdraw rows or a class.

    The site sends it when the server asks next. The server rebuilds its state without the old one.
    """
    from fedran.federation.site.upload import revise_upload

    size = human_bytes(len(revise_upload(find_site(folder), task)))
    typer.echo(
        f"the revised upload for {task} ({size}) is sent when the server "
        "asks next: with any task, or with a new classifier"
    )


def doctor(folder: SiteFolder, insecure: Insecure = False) -> None:
    """Examine a site: keys, data, disk, DNS, TLS, clock. Every problem has a remedy.

    The exit code is 1 if there is a problem.
    """
    from fedran.federation.site.doctor import examine

    checks = examine(find_site(folder), insecure=insecure)
    for found in checks:
        typer.echo(f"{'ok' if found.ok else 'PROBLEM':8}{found.name}: {found.text}")
        if found.remedy:
            typer.echo(f"        {found.remedy}")
    if not all(found.ok for found in checks):
        raise typer.Exit(1)
