"""The folder of an edge and of its members: uploads travel as files, without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedran.core.errors import Refused
from fedran.core.labels import Label
from fedran.federation.edge.edge import Edge
from fedran.federation.protocol.identity import SiteKey, base_task
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.messages import Envelope, Offer
from fedran.federation.protocol.receipts import Code
from fedran.federation.protocol.roster import Roster
from fedran.federation.site.labels import describe_unlabelled
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import OUTBOX, SitePaths, last_offer
from fedran.federation.site.worker import WorkerFailed, work_in_child
from fedran.wire.sizes import human_bytes, larger_than_rows
from fedran.wire.validation import DEFAULT_LIMITS


def add_member(
    paths: SitePaths, federation: str, client: str, public: str, *, replace_key: bool = False
) -> None:
    """List a member of an edge, with its public key, in ``members.toml``."""
    settings, path = paths.settings(), paths.folder / "members.toml"
    if federation != settings.federation:
        raise Refused("federation", settings.federation, federation)
    if client == settings.client:
        raise Refused("client", "another site", f"{client}, this one itself")
    members = Roster.load(path) if path.is_file() else Roster()
    change = members.with_other_key if replace_key else members.with_site
    change(client, public).save(path)
    (paths.folder / "inbox").mkdir(exist_ok=True, mode=0o700)


@dataclass(frozen=True)
class Prepared:
    """An upload that was made without a connection."""

    path: Path
    new: bool
    """Whether it was made now. An upload that exists for the task is used again."""
    withheld: tuple[tuple[Label, int], ...]
    """Classes with rows that are not in the upload, and their labelled rows."""
    unlabelled: str
    """What happened to rows without a label; empty if there are none."""
    remark: str
    """A sentence if it is larger than the rows that it describes."""


def prepare(paths: SitePaths, task: str, offer_file: Path) -> Prepared:
    """Make a site's upload for a task without a connection, as a file for its edge."""
    settings, offer = paths.settings(), replace(Offer.load(offer_file), task=task, earlier=())
    outbox = Outbox(paths.state / OUTBOX)
    before = outbox.envelope(task)
    problems = work_in_child(paths.settings_file, settings, offer)
    if problems.text:
        raise WorkerFailed(problems.text)
    path = outbox.folder / f"{task}.envelope"
    note = outbox.note(task)
    withheld = tuple((label, n) for label, n in note.get("withheld", []))
    unlabelled = ""
    if note.get("unlabelled"):
        counts = note["rows"], note["unlabelled"], note.get("pseudo_labelled")
        unlabelled = describe_unlabelled(*counts)
    made, remark = path.read_bytes(), ""
    if "rows" in note and offer.message == "summary":
        remark = larger_than_rows(len(made), note["rows"], offer.in_features)
    return Prepared(path, made != before, withheld, unlabelled, remark)


def forward(
    paths: SitePaths,
    task: str,
    envelopes: Sequence[Path],
    budget: int | None,
    without: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Accept uploads of members, and put one sum of the new ones into the outbox.

    Earlier sums are made again if their members have revised their uploads, or if the server asks
    for a sum without a member.
    """
    with _open_edge(paths) as edge:
        for path in [*envelopes, *sorted((paths.folder / "inbox").glob("*.envelope"))]:
            say(f"{path}: {_receive_file(edge, path)}")
        revise_sums(edge, budget, say)
        made = edge.forward(task, budget, without=without)
        if made is None:
            say(f"nothing new to forward for {task}")
        else:
            say(f"{_describe(made)} is in {edge.outbox.folder}")
        for path in sorted(edge.outbox.folder.glob("*.envelope")):
            receipt = edge.outbox.receipt(path.stem)
            if receipt is not None and receipt.outcome == "refused":
                say(f"{path.stem}: the server refused it: {receipt.reason}")


def answer_requests(paths: SitePaths, say: Callable[[str], None]) -> None:
    """Make the sums again that the server asked for without some members. A site calls this."""
    if not (paths.folder / "members.toml").is_file():
        return
    if Outbox(paths.state / OUTBOX).to_revise():
        with _open_edge(paths) as edge:
            revise_sums(edge, None, say)


def revise_sums(edge: Edge, budget: int | None, say: Callable[[str], None]) -> None:
    """Forget the members that the server asks to leave out, and make stale sums again."""
    for receipt in edge.outbox.to_revise():
        for member in receipt.without:
            edge.forget(member, base_task(receipt.task))
    for envelope in edge.revise(budget):
        say(f"{_describe(envelope)} replaces the earlier one")
    for receipt in edge.outbox.to_revise():  # a sum without these members: the server lost it
        edge.outbox.settle(replace(receipt, code=Code.LOST, without=()))


def _describe(total: Envelope) -> str:
    who = ", ".join(client for client, _ in total.statement.members)
    return f"{total.statement.task}: the sum of {who} ({human_bytes(len(total.upload))})"


@contextmanager
def _open_edge(paths: SitePaths) -> Iterator[Edge]:
    """The edge in a site's folder, with the lock of its outbox."""
    settings, folder, state = paths.settings(), paths.folder, paths.state
    offer = last_offer(state)
    if offer is not None:
        offer.require_plain()
    key, members = SiteKey.load(folder / settings.key), Roster.load(folder / "members.toml")
    outbox = Outbox(state / OUTBOX)
    with (
        locked(outbox.folder, settings.seconds),  # the site itself may be writing an upload
        closing(Edge(state / "edge", settings, key, members, outbox, offer)) as edge,
    ):
        yield edge


def _receive_file(edge: Edge, path: Path) -> str:
    """Give a file to the edge, and return the outcome as text."""
    limit = DEFAULT_LIMITS.message
    if path.stat().st_size > limit:
        return f"refused: larger than {human_bytes(limit)}"
    receipt = edge.receive(path.read_bytes())
    reason = f": {receipt.reason}" if receipt.reason else ""
    return f"{receipt.outcome} ({receipt.client}, {receipt.task}){reason}"
