"""What one lying site can do to the classifier of a federation, and what stops it.

    python benchmarks/attacks.py      about one minute; writes results/attacks.md

Digits, five sites, five tasks of two classes, M = 1024. Uploads are signed and go through the
server's own admission, without sockets. The results page says what the columns mean.
"""

from __future__ import annotations

import datetime
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import fedran
from fedran.core.features import row_energy_range
from fedran.core.summary import Summary
from fedran.core.sums.class_sums import ClassSums
from fedran.core.sums.exact_sum import ExactSum
from fedran.data.catalogue import digits
from fedran.data.rows import Rows
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.messages import seal
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.head.gate import ValidationSet, gains_without
from fedran.federation.server.head.head import update_head
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store.store import Store
from fedran.wire.codec import decode, encode

ROOT = Path(__file__).resolve().parent.parent
SITES, TASKS, M = 5, 5, 1024
LIAR, ACCOMPLICE = 4, 3
BUDGET = 500_000


@dataclass(frozen=True)
class Attack:
    """What the liar sends instead of its honest upload; None sends the honest one."""

    name: str
    forge: Callable[[World, int, int], Summary | None]
    """(world, site, task) -> message."""
    kind: str = "hellinger"
    message: str = "summary"


class World:
    """The rows of all sites and tasks, the feature map, test rows and validation rows."""

    def __init__(self, kind: str, message: str) -> None:
        self.settings = ServerSettings(
            "attacks", 64, M, kind, source="pixels", message=message, budget_bytes=BUDGET
        )
        self.phi = self.settings.features()
        data = digits()
        order = np.random.default_rng(0).permutation(len(data.y_train))
        held, kept = order[:250], order[250:]
        y = data.y_train[kept].tolist()
        self.validation = Rows(data.X_train[held], data.y_train[held].tolist())
        self.test = Rows(data.X_test, data.y_test.tolist())
        groups = np.array_split(np.unique(data.y_train), TASKS)
        self.rows = {}
        for task, classes in enumerate(groups):
            of_task = kept[np.isin(y, classes)]
            for site in range(SITES):
                mine = of_task[site::SITES]
                self.rows[site, task] = Rows(data.X_train[mine], data.y_train[mine].tolist())
        self.keys = [SiteKey.generate() for _ in range(SITES)]

    def message(self, rows: Rows, times: int = 1) -> Summary:
        """The message of a site about its rows, each of them ``times`` times."""
        H = self.phi(rows.X)
        summary = fedran.summarize(H, rows.y, rank=64, fingerprint=self.phi.fingerprint)
        return repeated(summary, times)

    def honest(self, site: int, task: int) -> Summary:
        """What a site says about its rows of a task."""
        return self.message(self.rows[site, task])

    def accuracy(self, head: fedran.Head | None) -> float:
        """Accuracy on the test rows in percent; 0 without a head."""
        if head is None:
            return 0.0
        found = head.predict(self.phi(self.test.X)).tolist()
        return 100 * float(np.mean([a == b for a, b in zip(found, self.test.y, strict=True)]))


def repeated(s: Summary, times: float) -> Summary:
    """The summary of the same rows, each ``times`` times."""
    counts = tuple(round(n * times) for n in s.counts)
    acc = s.accounts
    accounts = replace(
        acc,
        n_rows=sum(counts),
        energy=acc.energy * times,
        cut=acc.cut * times,
        eps_G=acc.eps_G * times,
        eps_G_fro=acc.eps_G_fro * times,
    )
    sums = ClassSums(s.classes, s.class_sums * times, counts)
    return replace(s, factor=s.factor * np.float32(np.sqrt(times)), sums=sums, accounts=accounts)


def flipped(world: World, site: int, task: int, times: int = 1, share: float = 1.0) -> Summary:
    """Both classes of the task exchanged for a share of the rows; each row counts several times."""
    rows = world.rows[site, task]
    other = dict(zip(sorted(set(rows.y)), sorted(set(rows.y), reverse=True), strict=True))
    flips = np.random.default_rng(task).random(len(rows.y)) < share
    y = [other[label] if flip else label for label, flip in zip(rows.y, flips, strict=True)]
    return world.message(Rows(rows.X, y), times)


def fake_class(
    world: World, task: int, when: int, n: int, energy: float, label: object = "fake"
) -> Summary | None:
    """The liar's rows of all tasks as one class, n rows at a given energy."""
    if task != when:
        return None
    own = [r for (site, _), r in world.rows.items() if site == LIAR]
    H = world.phi(np.concatenate([r.X for r in own]))
    H *= np.float32(np.sqrt(energy))
    s = fedran.summarize(H, [label] * len(H), 64, fingerprint=world.phi.fingerprint)
    return repeated(s, n / len(H))


def all_cut(world: World, site: int, task: int, when: int, flat: bool) -> Summary | None:
    """All energy declared as cut, as much per row as the feature map can have.

    With ``flat``, as a flat spectrum, of which one column is sent.
    """
    if task != when:
        return None
    s = repeated(world.honest(site, task), 1 if flat else 100)
    n = s.accounts.n_rows
    energy = n * (row_energy_range(world.phi.fingerprint) or (0, 0))[1]
    column = energy / (n - len(s.classes)) if flat else 0.0
    size = np.float32(np.sqrt(column) / np.linalg.norm(s.factor[:, 0]))
    cut = energy - column
    accounts = replace(
        s.accounts, energy=energy, cut=cut, eps_G=column or cut, eps_G_fro=cut, eta_loc=1.0
    )
    none = ClassSums(s.classes, 1e-9 * s.class_sums, s.counts)
    return replace(s, factor=s.factor[:, : int(flat)] * size, sums=none, accounts=accounts)


def drift(world: World, site: int, task: int) -> Summary:
    """Labels flipped for a share of the rows that grows from task to task, and more rows."""
    return flipped(world, site, task, times=1 + task // 2, share=(task + 1) / TASKS)


def only(*sites: int):
    """Restrict an attack to these sites."""

    def wrap(forge):
        return lambda world, site, task: forge(world, site, task) if site in sites else None

    return wrap


def honest(_world: World, _site: int, _task: int) -> None:
    """No attack."""


def attacks() -> list[Attack]:
    """Known attacks, then adaptive ones."""
    liar, two = only(LIAR), only(LIAR, ACCOMPLICE)
    return [
        Attack("none", honest),
        Attack("labels flipped, honest rows", liar(flipped)),
        Attack("labels flipped, rows x3", liar(lambda *a: flipped(*a, 3))),
        Attack("labels flipped, rows x10", liar(lambda *a: flipped(*a, 10))),
        Attack("labels flipped, rows x100", liar(lambda *a: flipped(*a, 100))),
        Attack("fake class, 3000 rows", liar(lambda w, _s, t: fake_class(w, t, 3, 3000, 1.0))),
        Attack(
            "fake class, 300 rows at 99 times the energy (relu)",
            liar(lambda w, _s, t: fake_class(w, t, 3, 300, 99.0)),
            "relu",
        ),
        Attack(
            "fake class, as many rows as are accepted",
            liar(lambda w, _s, t: fake_class(w, t, 3, 190, 1.0)),
        ),
        Attack(
            "all rows labelled as a new class, rows x4.5",
            liar(lambda w, _s, t: fake_class(w, t, 3, 180, 1.0, 6)),
        ),
        Attack("all energy declared as cut, rows x100", liar(lambda *a: all_cut(*a, 3, False))),
        Attack("a flat spectrum declared", liar(lambda *a: all_cut(*a, 3, True))),
        Attack("flips grow over tasks, rows up to x3", liar(drift)),
        Attack("two sites flip", two(flipped)),
        Attack("two sites flip, rows x3", two(lambda *a: flipped(*a, 3))),
    ]


def unchecked(world: World, attack: Attack) -> float:
    """Accuracy if every upload is added without a check."""
    total = ExactSum(M)
    for task in range(TASKS):
        for site in range(SITES):
            total.add_summary(attack.forge(world, site, task) or world.honest(site, task))
    return world.accuracy(total.solve(None, world.phi.fingerprint))


def uploads(world: World, attack: Attack, task: int) -> Iterator[tuple[bool, bytes | str]]:
    """Whether an upload is forged, and its envelope, or why it cannot even be encoded."""
    for site in range(SITES):
        forged = attack.forge(world, site, task)
        message = forged or world.honest(site, task)
        try:
            blob = encode(message)
        except fedran.Refused as reason:
            yield forged is not None, str(reason)
            continue
        assert message.fingerprint is not None
        envelope = seal(
            blob,
            world.keys[site],
            federation="attacks",
            client=f"site-{site + 1}",
            task=f"task-{task + 1}",
            fingerprint=message.fingerprint.hash,
        )
        yield forged is not None, envelope.to_bytes()


def defended(world: World, attack: Attack, folder: Path, rows: ValidationSet | None) -> Outcome:
    """Send everything, task after task, and solve a head after each; the operator answers holds.

    Whenever a head is held back, the operator forgets the upload that is named first.
    """
    roster = Roster({f"site-{i + 1}": key.public for i, key in enumerate(world.keys)})
    roster.save(folder / "roster.toml")
    decisions: list[tuple[str, str]] = []
    with closing(Store.open(folder, world.settings)) as store:
        forgotten: list[str] = []
        for task in range(TASKS):
            name = f"task-{task + 1}"
            for forged, blob in uploads(world, attack, task):
                receipt = None if isinstance(blob, str) else store.receive(blob)
                if forged:
                    outcome = ("refused", str(blob)) if receipt is None else None
                    decisions.append(outcome or (receipt.outcome, receipt.reason))
                elif receipt is None or receipt.outcome != "accepted":
                    raise AssertionError(f"an honest upload was not accepted: {receipt}")
            update_head(store, rows, name, world.settings.head_margin)
            while held := store.database.fact("held"):
                blamed = json.loads(held)["uploads"]
                if not blamed:
                    break
                client, of_task, _ = blamed[0]
                store.forget(client, of_task, "operator", SiteKey.generate())
                forgotten.append(f"{client} {of_task}")
                update_head(store, rows, name, world.settings.head_margin)
        path = store.folder / "head.fedran"
        head = decode(path.read_bytes(), fedran.Head) if path.is_file() else None
        named = ""
        if rows is not None:
            gains = gains_without(store, rows)
            worst = max(gains, key=lambda client: gains[client])
            named = f"{worst} {gains[worst]:+.1f}"
    return Outcome(world.accuracy(head), decisions, forgotten, named)


@dataclass(frozen=True)
class Outcome:
    """What the server served at the end, and what happened on the way."""

    accuracy: float
    decisions: list[tuple[str, str]]
    """Outcome and reason for every forged upload."""
    forgotten: list[str]
    influence: str
    """The most harmful site that is still in the head, and the points that it costs."""


def line(world: World, attack: Attack) -> str:
    """One row of the table."""
    raw = unchecked(world, attack)
    with tempfile.TemporaryDirectory() as folder:
        plain = defended(world, attack, Path(folder), None)
    with tempfile.TemporaryDirectory() as folder:
        rows = ValidationSet(world.validation, world.phi)
        gated = defended(world, attack, Path(folder), rows)
    outcomes = Counter(outcome for outcome, _ in plain.decisions)
    told = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items())) or "-"
    if attack.forge is not honest:
        reasons = dict.fromkeys(reason.split(",")[0] for _, reason in plain.decisions if reason)
        print("   ", "; ".join(reasons)[:300], "| forgotten:", gated.forgotten, flush=True)
    gate = f"{len(gated.forgotten)} forgotten" if gated.forgotten else "-"
    return (
        f"| {attack.name} | {raw:.2f} | {told} | {plain.accuracy:.2f} | {gate} | "
        f"{gated.accuracy:.2f} | {gated.influence} |"
    )


def main() -> None:
    """Run every attack and write the table."""
    lines = [
        "# Sites that lie",
        "",
        f"Made by `python benchmarks/attacks.py` on {datetime.date.today()}. Digits, {SITES} "
        f"sites, {TASKS} tasks of two classes, M = {M}. Accuracy on the test rows after the last "
        "task, in percent. The liar is one of five sites and flips the labels of every task. Fake "
        "classes and cuts are one upload, in the fourth task.",
        "",
        "- Unchecked: every upload is added without a check.",
        "- Checked: the server's admission with default settings, no cap in the roster, and no "
        "validation rows. Quarantined uploads are never accepted.",
        "- Gate: 250 validation rows at the server. Whenever a head is held back, the operator "
        "forgets the upload that is named first.",
        "- Influence: the most harmful site that is left at the end, and the points that its "
        "removal would gain on the validation rows.",
        "",
        "| attack | unchecked | liar's uploads | checked | gate | with validation rows | "
        "influence |",
        "|---|---:|---|---:|---|---:|---|",
    ]
    worlds: dict[tuple[str, str], World] = {}
    for attack in attacks():
        key = attack.kind, attack.message
        if key not in worlds:
            worlds[key] = World(*key)
        lines.append(line(worlds[key], attack))
        print(lines[-1], flush=True)
    lines += [
        "",
        "Claims of many rows, of much energy and of energy that was cut are stopped by the checks "
        "of uploads. Flipped labels at up to five times the rows of other sites pass them. The "
        "gate stops a new head that costs more than its margin of 2 points, also if two of five "
        "sites lie. Without validation rows nothing stops these. Smaller losses pass, and add up "
        "over the tasks, as the lines of flips with rows x3 and of growing flips show. "
        "`fedran federation status --influence` names their site if the validation rows show it; "
        "250 rows resolve about one point.",
    ]
    (ROOT / "results" / "attacks.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
