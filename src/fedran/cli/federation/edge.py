"""Commands of edges and of sites without a connection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedran.cli.federation.arguments import ServerFolder, SiteFolder, Task, find_server, find_site
from fedran.wire.sizes import human_bytes, parse_bytes


def offer(folder: ServerFolder, task: Task) -> None:
    """Print the server's request for a task as JSON, for `prepare` at members of an edge."""
    from fedran.federation.protocol.identity import check_task

    typer.echo(json.dumps(find_server(folder).settings().offer(check_task(task)).fields()))


def prepare(
    folder: SiteFolder,
    task: Task,
    offer: Annotated[
        Path, typer.Option(help="File with the output of `offer`, or the edge's state/offer.json.")
    ],
) -> None:
    """Make a site's upload without a connection, as a file for an edge."""
    from fedran.federation.edge.folder import prepare as make

    made = make(find_site(folder), task, offer)
    size = human_bytes(made.path.stat().st_size)
    what = "made now" if made.new else "made earlier, used again"
    typer.echo(f"{made.path} ({size}, {what}); copy it to inbox/ in the edge's folder")
    if made.withheld:
        shown = ", ".join(f"{label!r} ({n} rows)" for label, n in made.withheld)
        typer.echo(f"withheld, because of too few rows: {shown}")
    if made.unlabelled:
        typer.echo(made.unlabelled)
    if made.remark:
        typer.echo(made.remark)


def forward(
    folder: Annotated[Path, typer.Argument(help="Folder of the edge.", show_default=False)],
    task: Task,
    envelopes: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Uploads of members, besides inbox/*.envelope in FOLDER.", show_default=False
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Size limit of the sum, e.g. 2MB. Default: all columns in float32."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="A member to leave out. May be repeated.")
    ] = None,
) -> None:
    """Add up the new uploads of an edge's members and send the sum with the next task.

    The server refuses a sum with an upload that it already has. Then delete
    the sum's .envelope and .receipt in the outbox, and forward again with
    --without and the name of that member.
    """
    from fedran.federation.edge.folder import forward as run

    size = None if budget is None else parse_bytes(budget)
    run(find_site(folder), task, envelopes or [], size, without or [], typer.echo)
