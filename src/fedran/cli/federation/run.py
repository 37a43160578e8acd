"""Commands that run a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedran.cli.federation.arguments import (
    FederationFolder,
    ServerFolder,
    SiteFolder,
    Task,
    find_server,
    find_site,
)


def server(folder: ServerFolder) -> None:
    """Run a server in the foreground until Ctrl-C."""
    from fedran.federation.ops.services import run_server

    run_server(find_server(folder), say=typer.echo)


def client(folder: SiteFolder) -> None:
    """Run a site in the foreground until Ctrl-C."""
    from fedran.federation.ops.services import run_site

    run_site(find_site(folder), say=typer.echo)


def up(folder: FederationFolder) -> None:
    """Start a server and its sites on this machine in the background."""
    from fedran.federation.ops.services import start_federation

    start_federation(folder, say=typer.echo)


def down(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a federation, server or site.", show_default=False)
    ],
) -> None:
    """Stop the server and the sites that run in a folder."""
    from fedran.federation.ops.services import stop_federation

    if not stop_federation(folder, say=typer.echo):
        typer.echo("nothing is running here")


def task(
    folder: ServerFolder,
    task: Task,
    deadline: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How long to wait for missing sites, instead of `deadline` in server.toml.",
        ),
    ] = None,
) -> None:
    """Run a task: collect uploads, solve the classifier, send it to the sites.

    It waits for every site of the roster, also for one that is not
    connected, until the deadline or until `close`. A late upload is accepted
    when the site is back. The exit code is 1 if fewer than `min_clients`
    sites took part.
    """
    from fedran.federation.ops.tasks import ENOUGH, run_task

    place = find_server(folder)
    if run_task(place, task, deadline=deadline, say=typer.echo) not in ENOUGH:
        raise typer.Exit(1)


def close(folder: ServerFolder) -> None:
    """End the open task now, without the sites that are missing.

    The classifier is solved from the uploads that have arrived. The others
    are accepted when their sites are back.
    """
    from fedran.federation.ops.tasks import close_task

    typer.echo(f"task {close_task(find_server(folder))} ends now")


def simulate(
    folder: FederationFolder,
    tasks: Annotated[
        list[str], typer.Argument(help="Ids of the tasks, in order.", show_default=False)
    ],
) -> None:
    """Run tasks over all sites of a folder, without Flower and without a network.

    The exit code is 1 if fewer than `min_clients` sites took part in a task.
    """
    from fedran.federation.ops.tasks import ENOUGH
    from fedran.federation.ops.tasks import simulate as run

    if not set(run(folder, tasks, say=typer.echo)) <= set(ENOUGH):
        raise typer.Exit(1)
