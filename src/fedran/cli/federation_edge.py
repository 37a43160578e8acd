"""``fedran federation forward``: an edge sums its members' uploads into its own outbox."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from fedran.core.fingerprint import Fingerprint
from fedran.federation.messages.identity import SiteKey
from fedran.federation.messages.offer import Offer
from fedran.federation.messages.roster import Roster
from fedran.federation.pidfile import alone
from fedran.federation.settings import SiteSettings, load_settings
from fedran.federation.sites.edge import Edge, EdgeRules
from fedran.federation.sites.outbox import Outbox
from fedran.wire.units import human_bytes, parse_bytes


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
    size = None if budget is None else parse_bytes(budget)
    settings = load_settings(SiteSettings, folder / "site.toml")
    state = folder / settings.state
    rules = EdgeRules(settings.federation, settings.client, _remembered(state))
    key, members = SiteKey.load(folder / settings.key), Roster.load(folder / "members.toml")
    outbox = Outbox(state / "outbox")
    with (
        alone(outbox.folder, settings.seconds),  # the site's client may be putting an upload there
        closing(Edge(state / "edge", rules, key, members, outbox)) as edge,
    ):
        for path in [*(envelopes or []), *sorted((folder / "inbox").glob("*.envelope"))]:
            _take(edge, path)
        made = edge.forward(task, size, without=without or ())
    if made is None:
        typer.echo(f"nothing new to forward for {task}")
    else:
        who = ", ".join(client for client, _ in made.statement.members)
        sent = human_bytes(len(made.upload))
        typer.echo(f"{made.statement.task}: the sum of {who} ({sent}) is in {outbox.folder}")
    for path in sorted(outbox.folder.glob("*.envelope")):
        receipt = outbox.receipt(path.stem)
        if receipt is not None and receipt.outcome == "refused":
            typer.echo(f"{path.stem}: the server refused it: {receipt.reason}")


def _take(edge: Edge, path: Path) -> None:
    largest = edge.rules.limits.message
    if path.stat().st_size > largest:
        typer.echo(f"{path}: refused: larger than {human_bytes(largest)}")
        return
    receipt = edge.receive(path.read_bytes())
    reason = f": {receipt.reason}" if receipt.reason else ""
    typer.echo(f"{path}: {receipt.outcome} ({receipt.client}, {receipt.task}){reason}")


def _remembered(state: Path) -> Fingerprint | None:
    """Of the features that the server last offered a task for, if it did."""
    path = state / "offer.json"
    return (
        Offer.read(json.loads(path.read_bytes())).features().fingerprint if path.is_file() else None
    )
