"""What one lying site can do to the classifier of a federation, and what stops it.

    python benchmarks/attacks.py      about one minute; writes results/attacks.md

Digits, five sites, five tasks of two classes, M = 1024. Uploads are signed and go through the
server's own admission, without sockets. "Unchecked" adds every upload to the sum without a check:
it is the damage that an attack would do. The other columns are the head that the server serves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import fedran
from fedran.core.class_sums import ClassSums
from fedran.core.exact import ExactSum
from fedran.core.features import largest_row_norm
from fedran.core.mixture import Mixture
from fedran.core.summary import Summary
from fedran.data.catalogue import digits
from fedran.federation.protocol.identity import Roster, SiteKey
from fedran.federation.protocol.messages import seal
from fedran.federation.protocol.rows import Rows
from fedran.federation.server.head import update_head
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store import Store
from fedran.federation.server.validation_set import ValidationSet
from fedran.wire.codec import decode, encode

ROOT = Path(__file__).resolve().parent.parent
SITES, TASKS, M = 5, 5, 1024
LIAR, ACCOMPLICE = 4, 3
BUDGET = 500_000
Message = Summary | Mixture


@dataclass(frozen=True)
class Attack:
    """What the liar sends instead of its honest upload; None sends the honest one."""

    name: str
    forge: Callable[[World, int, int], Message | None]
    """(world, site, task) -> message."""
    kind: str = "hellinger"
    message: str = "summary"


class World:
    """The rows of all sites and tasks, the feature map, test rows and validation rows."""

    def __init__(self, kind: str, message: str) -> None:
        self.settings = ServerSettings(
            "attacks",
            64,
            M,
            kind,
            source="pixels",
            message=message,
            budget_bytes=BUDGET,
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

    def message(self, rows: Rows, times: int = 1) -> Message:
        """The message of a site about its rows, each of them ``times`` times."""
        if self.settings.message == "mixture":
            mixture = fedran.condense(rows.X, rows.y, self.phi)
            parts = tuple(replace(p, counts=p.counts * times) for p in mixture.parts)
            return replace(mixture, parts=parts)
        H = self.phi(rows.X)
        summary = fedran.summarize(H, rows.y, rank=64, fingerprint=self.phi.fingerprint)
        return repeated(summary, times)

    def honest(self, site: int, task: int) -> Message:
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
    counts = tuple(int(n * times) for n in s.counts)
    acc = s.accounts
    accounts = replace(
        acc,
        n_rows=int(acc.n_rows * times),
        energy=acc.energy * times,
        cut=acc.cut * times,
        eps_G=acc.eps_G * times,
        eps_G_fro=acc.eps_G_fro * times,
    )
    sums = ClassSums(s.classes, s.class_sums * times, counts)
    return replace(s, factor=s.factor * np.float32(np.sqrt(times)), sums=sums, accounts=accounts)


def flipped(world: World, site: int, task: int, times: int = 1) -> Message:
    """Both classes of the task exchanged, and the rows counted several times."""
    rows = world.rows[site, task]
    first, second = sorted(set(rows.y))
    y = [second if label == first else first for label in rows.y]
    return world.message(Rows(rows.X, y), times)


def fake_class(world: World, task: int, when: int, n: int, energy: float) -> Message | None:
    """The liar's rows of all tasks as one class that does not exist, n rows at a given energy."""
    if task != when:
        return None
    own = [r for (site, _), r in world.rows.items() if site == LIAR]
    H = world.phi(np.concatenate([r.X for r in own]))
    s = fedran.summarize(
        H * np.float32(np.sqrt(energy)), ["fake"] * len(H), 64, fingerprint=world.phi.fingerprint
    )
    return repeated(s, n / len(H))


def all_cut(world: World, site: int, task: int, when: int, flat: bool) -> Message | None:
    """All energy declared as cut, as much per row as the feature map can have.

    With ``flat``, as a flat spectrum, of which one column is sent.
    """
    if task != when:
        return None
    s = world.honest(site, task)
    assert isinstance(s, Summary)
    n = s.accounts.n_rows
    energy = n * (largest_row_norm(world.phi.fingerprint) or 0) ** 2
    column = energy / (n - len(s.classes)) if flat else 0.0
    size = np.float32(np.sqrt(column) / np.linalg.norm(s.factor[:, 0]))
    cut = energy - column
    accounts = replace(
        s.accounts, energy=energy, cut=cut, eps_G=column or cut, eps_G_fro=cut, eta_loc=1.0
    )
    none = ClassSums(s.classes, 1e-9 * s.class_sums, s.counts)
    return replace(s, factor=s.factor[:, : int(flat)] * size, sums=none, accounts=accounts)


def drift(world: World, site: int, task: int) -> Message:
    """Labels flipped for a share of the rows that grows from task to task, and more rows."""
    rows = world.rows[site, task]
    first, second = sorted(set(rows.y))
    share = (task + 1) / TASKS
    flips = np.random.default_rng(task).random(len(rows.y)) < share
    y = [
        (second if label == first else first) if flip else label
        for label, flip in zip(rows.y, flips, strict=True)
    ]
    return world.message(Rows(rows.X, y), 1 + task // 2)


def only(*sites: int):
    """Restrict an attack to these sites."""

    def wrap(forge):
        return lambda world, site, task: forge(world, site, task) if site in sites else None

    return wrap


def attacks() -> list[Attack]:
    """Known attacks, then adaptive ones, then those on mixtures."""
    liar, two = only(LIAR), only(LIAR, ACCOMPLICE)
    return [
        Attack("none", lambda *_: None),
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
        Attack("fake class, honest rows", liar(lambda w, _s, t: fake_class(w, t, 3, 40, 1.0))),
        Attack("all energy declared as cut", liar(lambda *a: all_cut(*a, 3, False))),
        Attack("a flat spectrum declared", liar(lambda *a: all_cut(*a, 3, True))),
        Attack("flips grow over tasks, rows up to x3", liar(drift)),
        Attack("two sites flip", two(flipped)),
        Attack("two sites flip, rows x3", two(lambda *a: flipped(*a, 3))),
        Attack("none (mixtures)", lambda *_: None, message="mixture"),
        Attack(
            "flipped mixture, counts x100", liar(lambda *a: flipped(*a, 100)), message="mixture"
        ),
    ]


def unchecked(world: World, attack: Attack) -> float:
    """Accuracy if every upload is added without a check."""
    total = ExactSum(M)
    for task in range(TASKS):
        for site in range(SITES):
            message = attack.forge(world, site, task) or world.honest(site, task)
            if isinstance(message, Mixture):
                total.add_mixture(message, world.phi)
            else:
                total.add_summary(message)
    return world.accuracy(total.solve(None, world.phi.fingerprint))


def uploads(world: World, attack: Attack, task: int):
    """Signed envelopes of all sites for a task, and whether each is forged."""
    for site in range(SITES):
        forged = attack.forge(world, site, task)
        message = forged or world.honest(site, task)
        try:
            blob = encode(message)
        except fedran.Refused as reason:
            yield site, forged is not None, str(reason)
            continue
        envelope = seal(
            blob,
            world.keys[site],
            federation="attacks",
            client=f"site-{site + 1}",
            task=f"task-{task + 1}",
            fingerprint=message.fingerprint.hash,
        )
        yield site, forged is not None, envelope.to_bytes()


def defended(world: World, attack: Attack, folder: Path, *, validation: bool):
    """Accuracy of the head in service, and what was decided about the forged uploads."""
    roster = Roster({f"site-{i + 1}": key.public for i, key in enumerate(world.keys)})
    roster.save(folder / "roster.toml")
    rows = ValidationSet(world.validation, world.phi) if validation else None
    decisions = []
    with closing(Store.open(world.settings, folder)) as store:
        for task in range(TASKS):
            for _, forged, blob in uploads(world, attack, task):
                if isinstance(blob, str):
                    decisions.append(("refused", blob))
                    continue
                receipt = store.receive(blob)
                if forged:
                    decisions.append((receipt.outcome, receipt.reason))
                elif receipt.outcome != "accepted":
                    raise AssertionError(f"an honest upload was not accepted: {receipt.reason}")
            update_head(store, rows, f"task-{task + 1}", world.settings.head_margin)
        path = store.folder / "head.fedran"
        head = decode(path.read_bytes(), fedran.Head) if path.is_file() else None
    return world.accuracy(head), decisions


def main() -> None:
    """Run every attack and print the table."""
    lines = []
    worlds = {}
    for attack in attacks():
        key = attack.kind, attack.message
        if key not in worlds:
            worlds[key] = World(*key)
        world = worlds[key]
        raw = unchecked(world, attack)
        with tempfile.TemporaryDirectory() as folder:
            served, decisions = defended(world, attack, Path(folder), validation=False)
        with tempfile.TemporaryDirectory() as folder:
            gated, _ = defended(world, attack, Path(folder), validation=True)
        outcomes = ", ".join(sorted({outcome for outcome, _ in decisions})) or "-"
        lines.append(f"| {attack.name} | {raw:.2f} | {outcomes} | {served:.2f} | {gated:.2f} |")
        print(lines[-1], flush=True)


if __name__ == "__main__":
    main()
