"""Commands at a site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedran.cli.federation.arguments import SiteFolder, Task, find_site
from fedran.wire.sizes import human_bytes


def check(
    folder: SiteFolder,
    task: Annotated[
        str | None, typer.Argument(help="Also check its rows.", show_default=False)
    ] = None,
    roster: Annotated[
        Path | None,
        typer.Option(
            help="With secure sums: the server's roster.toml. Default: what the server showed last."
        ),
    ] = None,
    trust: Annotated[
        str | None,
        typer.Option(
            metavar="FINGERPRINT",
            help="Pin the roster with this fingerprint, which the server's owner read to you.",
        ),
    ] = None,
) -> None:
    """Examine a site: keys, disk, connection, clock, and the rows of a task before they are sent.

    Every line is ok, a warning or a problem, with its remedy. The exit code
    is 1 if there is a problem.
    """
    from fedran.federation.secure.site.pinning import trust_roster
    from fedran.federation.status.check import check_site

    paths = find_site(folder)
    if trust is not None:
        typer.echo(f"this site has pinned the roster {trust_roster(paths, trust, roster)}")
        return
    worst = 0
    for found in check_site(paths, task, roster=roster):
        typer.echo(f"{found.level:8}{found.text}")
        if found.remedy:
            typer.echo(f"        {found.remedy}")
        worst = max(worst, found.level == "problem")
    if worst:
        raise typer.Exit(1)


def revise(folder: SiteFolder, task: Task) -> None:
    """Replace the upload of a task by one of its present rows, to withdraw rows or a class.

    The site sends it when the server asks next. The server rebuilds its
    state without the old one.
    """
    from fedran.federation.site.upload import revise_upload

    size = human_bytes(len(revise_upload(find_site(folder), task)))
    typer.echo(
        f"the revised upload for {task} ({size}) is sent when the server asks next: within an "
        "hour while the site is connected; until then `status` shows it as pending"
    )
