"""``fedran federation offer | prepare | forward``: an edge and its members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedran.wire.sizes import human_bytes, parse_bytes


def offer(
    folder: Annotated[Path, typer.Argument(help="The server's folder.", show_default=False)],
    task: Annotated[str, typer.Argument(help="The task.", show_default=False)],
) -> None:
    """Print what the server asks for a task, as JSON: for `prepare`, at members of an edge."""
    from fedran.federation.protocol.identity import check_task
    from fedran.federation.server.settings import ServerPaths

    typer.echo(json.dumps(ServerPaths.find(folder).settings().offer(check_task(task)).fields()))


def prepare(
    folder: Annotated[Path, typer.Argument(help="The member's folder.", show_default=False)],
    task: Annotated[str, typer.Argument(help="The task.", show_default=False)],
    asked: Annotated[
        Path, typer.Option("--offer", help="What `offer` printed, or the edge's state/offer.json.")
    ],
) -> None:
    """Make a site's upload for a task without a connection: its file goes to an edge's inbox."""
    from fedran.federation.edge.folder import prepare as make
    from fedran.federation.site.settings import SitePaths

    path = make(SitePaths.find(folder), task, asked)
    typer.echo(f"{path} ({human_bytes(path.stat().st_size)}); copy it into the edge's inbox/")


def forward(
    folder: Annotated[Path, typer.Argument(help="The site's: site.toml, members.toml, inbox/.")],
    task: Annotated[str, typer.Argument(help="The members' task to sum.")],
    envelopes: Annotated[
        list[Path] | None,
        typer.Argument(help="Members' outbox files, besides FOLDER/inbox/*.envelope."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Bytes that may travel, e.g. 2MB (default: all columns in float32)."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="A member to leave out; may be repeated.")
    ] = None,
) -> None:
    """Take in members' uploads and forward one sum of those that are new, for a task.

    Where the server refused a sum because a member's upload is in already: delete the sum's
    .envelope and .receipt in the outbox, and forward again --without that member.
    """
    from fedran.federation.edge.folder import forward as run
    from fedran.federation.site.settings import SitePaths

    size = None if budget is None else parse_bytes(budget)
    run(SitePaths.find(folder), task, envelopes or [], size, without or [], typer.echo)
