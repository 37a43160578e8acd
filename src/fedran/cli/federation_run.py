"""``fedran federation server | client | up | down | task | accept``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ServerFolder = Annotated[
    Path, typer.Argument(help="The server's folder, or the trial's.", show_default=False)
]
SiteFolder = Annotated[Path, typer.Argument(help="The site's folder.", show_default=False)]
TrialFolder = Annotated[Path, typer.Argument(help="The trial's folder.", show_default=False)]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Neither encrypt nor check who connects. Never in production."),
]
TaskName = Annotated[str, typer.Argument(help="The task's id.", show_default=False)]


def server(folder: ServerFolder, insecure: Insecure = False) -> None:
    """Run a server until Ctrl-C: Flower's SuperLink, kept running, TLS and node keys."""
    from fedran.federation.ops.programs import run_server
    from fedran.federation.server.settings import ServerPaths

    run_server(ServerPaths.find(folder), insecure=insecure, say=typer.echo)


def client(folder: SiteFolder, insecure: Insecure = False) -> None:
    """Run a site until Ctrl-C: Flower's SuperNode, kept running."""
    from fedran.federation.ops.programs import run_site
    from fedran.federation.site.settings import SitePaths

    run_site(SitePaths.find(folder), insecure=insecure, say=typer.echo)


def up(folder: TrialFolder, insecure: Insecure = False) -> None:
    """Start a trial's server and sites in the background, and wait until all are connected."""
    from fedran.federation.ops.trial import bring_up

    bring_up(folder, insecure=insecure, say=typer.echo)


def down(folder: TrialFolder) -> None:
    """End what runs in a trial's folder, or in a server's or a site's."""
    from fedran.federation.ops.trial import bring_down

    if not bring_down(folder, say=typer.echo):
        typer.echo("nothing runs here")


def simulate(
    folder: TrialFolder,
    tasks: Annotated[list[str], typer.Argument(help="Tasks, one after the other.")],
    cpus: Annotated[float, typer.Option(min=0.1, help="Cores for each site at work.")] = 1.0,
) -> None:
    """Run tasks over all sites of a folder under Flower's simulation engine (Ray)."""
    from fedran.federation.ops.simulation import simulate as run

    done = run(folder, tasks, cpus=cpus, say=typer.echo)
    if any(d.verdict not in ("complete", "quorum") for d in done):
        raise typer.Exit(1)


def task(folder: ServerFolder, task: TaskName) -> None:
    """Run one task: ask all sites, take in what comes, hand back the new head."""
    from fedran.federation.ops.task_run import run_task
    from fedran.federation.server.settings import ServerPaths

    done = run_task(ServerPaths.find(folder), task, say=typer.echo)
    if done.verdict not in ("complete", "quorum"):
        raise typer.Exit(1)


def accept(
    folder: ServerFolder,
    client: Annotated[str, typer.Argument(help="The site's id.", show_default=False)],
    task: TaskName,
) -> None:
    """Take in an upload that was put aside as unusual."""
    from fedran.federation.protocol.lockfile import locked
    from fedran.federation.server.app import open_store
    from fedran.federation.server.settings import ServerPaths

    place = ServerPaths.find(folder)
    with locked(place.state, 60.0, task=task):
        store = open_store(place.settings(), place.folder)
        try:
            receipt = store.accept(client, task)
            (place.state / "served.json").write_text('{"head": "an older one", "nodes": []}')
        finally:
            store.close()
    typer.echo(f"{client}, {task}: {receipt.outcome}; a running server hands out a new head soon")
