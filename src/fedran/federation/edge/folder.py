"""An edge's folder: ``site.toml``, ``members.toml``, ``inbox/``; and a member's, without a net."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from fedran.core.errors import Refused
from fedran.core.fingerprint import Fingerprint
from fedran.federation.edge.edge import Edge, EdgeRules
from fedran.federation.protocol.identity import Roster, SiteKey
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.messages import Offer
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import SitePaths
from fedran.federation.site.worker import work_apart
from fedran.wire.sizes import human_bytes

Say = Callable[[str], None]


def add_member(place: SitePaths, federation: str, client: str, public: str) -> None:
    """List a member of an edge, with its public key, in ``members.toml``."""
    settings, path = place.settings(), place.folder / "members.toml"
    if federation != settings.federation:
        raise Refused("federation", settings.federation, federation)
    if client == settings.client:
        raise Refused("client", "another site", f"{client}, this one itself")
    members = Roster.load(path) if path.is_file() else Roster()
    members.with_site(client, public).save(path)
    (place.folder / "inbox").mkdir(exist_ok=True, mode=0o700)


def prepare(place: SitePaths, task: str, asked: Path) -> Path:
    """Make a site's upload for a task without a connection; the file for its edge."""
    if not asked.is_file():
        raise FileNotFoundError(f"{asked}: no such file; expected what the server asks, as JSON")
    try:
        offer = Offer.read(json.loads(asked.read_bytes()))
    except ValueError as reason:
        raise Refused(str(asked), "what `fedran federation offer` prints", str(reason)) from None
    settings = place.settings()
    told = work_apart(place.settings_file, settings, replace(offer, task=task, earlier=()))
    if told:
        raise ValueError(told)
    return place.folder / settings.state / "outbox" / f"{task}.envelope"


def forward(
    place: SitePaths,
    task: str,
    envelopes: Sequence[Path],
    budget: int | None,
    without: Sequence[str],
    say: Say,
) -> None:
    """Take in members' uploads, and put one sum of those that are new into the outbox."""
    settings, folder = place.settings(), place.folder
    state = folder / settings.state
    rules = EdgeRules(settings.federation, settings.client, _remembered(state))
    key, members = SiteKey.load(folder / settings.key), Roster.load(folder / "members.toml")
    outbox = Outbox(state / "outbox")
    with (
        locked(outbox.folder, settings.seconds),  # the site's client may be putting an upload there
        closing(Edge(state / "edge", rules, key, members, outbox)) as edge,
    ):
        for path in [*envelopes, *sorted((folder / "inbox").glob("*.envelope"))]:
            _take(edge, path, say)
        made = edge.forward(task, budget, without=without)
    if made is None:
        say(f"nothing new to forward for {task}")
    else:
        who = ", ".join(client for client, _ in made.statement.members)
        sent = human_bytes(len(made.upload))
        say(f"{made.statement.task}: the sum of {who} ({sent}) is in {outbox.folder}")
    for path in sorted(outbox.folder.glob("*.envelope")):
        receipt = outbox.receipt(path.stem)
        if receipt is not None and receipt.outcome == "refused":
            say(f"{path.stem}: the server refused it: {receipt.reason}")


def _take(edge: Edge, path: Path, say: Say) -> None:
    largest = edge.rules.limits.message
    if path.stat().st_size > largest:
        say(f"{path}: refused: larger than {human_bytes(largest)}")
        return
    receipt = edge.receive(path.read_bytes())
    reason = f": {receipt.reason}" if receipt.reason else ""
    say(f"{path}: {receipt.outcome} ({receipt.client}, {receipt.task}){reason}")


def _remembered(state: Path) -> Fingerprint | None:
    """Of the features that the server last offered a task for, if it did."""
    path = state / "offer.json"
    return (
        Offer.read(json.loads(path.read_bytes())).features().fingerprint if path.is_file() else None
    )
