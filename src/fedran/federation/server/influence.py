"""What each site and each upload does to the accuracy: the head without it, on validation rows.

The parts of the left-out uploads are subtracted from the sum in memory, which takes one solve per
line. A replay of all other uploads into an empty aggregator confirms a line; it takes as long as a
rebuild.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace

from fedran.core.aggregator import Aggregator
from fedran.core.head import Head
from fedran.federation.server.gate import ValidationSet
from fedran.federation.server.schema import Upload
from fedran.federation.server.store import Store

MAX_KEPT = 200
"""Lines that the status shows."""
HARMFUL = 0.5
"""Points of accuracy that a site must cost before its line is confirmed by a replay."""


@dataclass(frozen=True)
class Influence:
    """The accuracy without a site, or without one of its uploads."""

    client: str
    task: str
    """Empty for all uploads of the site."""
    rows: int
    without: float
    """Accuracy without it, from 0 to 1. A class that is then missing counts as wrong."""
    gain: float
    """Points by which the accuracy is higher without it. A large value names a liar."""
    replayed: float | None = None
    """The accuracy without it by replay; None if that was not tried."""


@dataclass(frozen=True)
class InfluenceTable:
    """The accuracy with everything, and one line per site or upload, most harmful first."""

    at: float
    """Unix time."""
    accuracy: float
    lines: tuple[Influence, ...]


def measure_influence(
    store: Store,
    validation: ValidationSet,
    *,
    by_upload: bool = False,
    replay_all: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> InfluenceTable:
    """Leave out every site, or every upload, and keep the result for the status.

    The most harmful line is confirmed by replay if it costs HARMFUL points, or all of them with
    ``replay_all``.
    """
    uploads, full = store.database.uploads(), store.solve()
    total = validation.accuracy(full)
    if total is None:
        raise ValueError("the validation rows have no class of the federation's head")

    def tested(head: Head | None) -> float:
        """Accuracy on the rows of all classes. Those that the head lacks are wrong."""
        return 0.0 if head is None else validation.accuracy(head, full.classes) or 0.0

    groups: dict[tuple[str, str], list[Upload]] = {}
    for upload in uploads:
        key = (upload.client, upload.task if by_upload else "")
        groups.setdefault(key, []).append(upload)
    lines = []
    for (client, task), left_out in groups.items():
        say(f"without {client}{', ' + task if task else ''}")
        messages = map(store.database.message, left_out)  # one at a time in memory
        rest = store.aggregator.solve_without(messages, store.ridge)
        without = tested(rest)
        rows = sum(upload.rows for upload in left_out)
        lines.append(Influence(client, task, rows, without, 100 * (without - total)))
    lines.sort(key=lambda line: (-line.gain, line.client, line.task))
    confirmed = []
    for i, line in enumerate(lines):
        if replay_all or (i == 0 and line.gain > HARMFUL):
            say(f"replay without {line.client}{', ' + line.task if line.task else ''}")
            replayed = tested(replay(store, groups[line.client, line.task]))
            line = replace(line, replayed=replayed)
        confirmed.append(line)
    table = InfluenceTable(time.time(), total, tuple(confirmed))
    with store.tolerating_a_full_disk("influence"):
        kept = replace(table, lines=table.lines[:MAX_KEPT])
        store.database.set_fact("influence", json.dumps(asdict(kept)))
    return table


def replay(store: Store, left_out: Collection[Upload]) -> Head | None:
    """The head of an empty aggregator that absorbs all other uploads in order of acceptance."""
    numbers = {upload.number for upload in left_out}
    kept = [u for u in store.database.uploads() if u.number not in numbers]
    total = Aggregator(store.settings.out_features, fingerprint=store.fingerprint)
    for upload in kept:
        total.absorb(store.database.message(upload), client=upload.client, task=upload.task)
    return total.solve(store.ridge) if total.classes else None
