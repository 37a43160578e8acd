"""What the server's gate does to honest sites, and to sites that lie.

    FEDRAN_DATA=... python benchmarks/attacks.py     about an hour; writes results/attacks.md
    python benchmarks/attacks.py --only digits       some minutes; replaces the lines of digits

Uploads are signed and go through the server's own admission, gate and solve, without sockets. The
results page says what the columns mean.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import fedran
from fedran.data.catalogue import load_dataset
from fedran.data.rows import Rows
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.messages import seal
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.head.head import judged, update_head
from fedran.federation.server.head.validation import ValidationSet
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store.store import Store
from fedran.wire.codec import encode
from fedran_bench.results.result import dataset_title
from fedran_bench.streams import make_stream

ROOT = Path(__file__).resolve().parent.parent
LANDMARKS = 1024
NAMES = ("digits", "cifar100-vit_ti16", "cifar100-efficientnet_lite0")
ROWS = {"digits": 150, "cifar100-vit_ti16": 200, "cifar100-efficientnet_lite0": 100}
"""Training rows per class."""
TASKS = {"digits": 5, "cifar100-vit_ti16": 10, "cifar100-efficientnet_lite0": 10}
TESTED = 40
"""Most test rows per class."""
STREAMS = {"digits": 5}
"""Streams of each kind; one where nothing is said."""


@dataclass(frozen=True)
class Setting:
    """One stream."""

    data: str
    beta: float
    sites: int
    noise: float = 0.0
    validation: int = 0
    """Rows per class at the server; 0: no validation rows."""
    seed: int = 0


def some(y: Any, most: int, skip: int = 0) -> Any:
    """The positions of at most ``most`` rows of each class, after the first ``skip``."""
    return np.concatenate([np.flatnonzero(y == c)[skip : skip + most] for c in np.unique(y)])


class World:
    """The rows of all sites and tasks, test rows and validation rows."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        data = load_dataset(setting.data)
        y = np.asarray(data.y_train)
        kept = some(y, ROWS[setting.data])
        held = some(y, setting.validation, ROWS[setting.data])
        if len(held) < setting.validation * len(np.unique(y)):  # digits has few rows
            held, kept = some(y, setting.validation), some(y, ROWS[setting.data], 20)
        self.X, self.y = data.X_train[kept], y[kept]
        self.names = np.unique(y).tolist()
        kind = data.feature_kind
        self.settings = ServerSettings(
            "attacks", self.X.shape[1], kind, setting.data, landmarks=LANDMARKS
        )
        self.phi = self.settings.features()
        found = some(np.asarray(data.y_test), TESTED)
        self.test = self.phi(data.X_test[found]), np.asarray(data.y_test)[found]
        held_rows = Rows(data.X_train[held], y[held].tolist())
        self.validation = ValidationSet(held_rows, self.phi) if setting.validation else None
        stream = make_stream(
            self.y,
            n_tasks=TASKS[setting.data],
            n_clients=setting.sites,
            beta=setting.beta,
            seed=setting.seed,
        )
        self.tasks = [list(task.classes) for task in stream.tasks]
        self.rows = {
            (k, t): r for t, task in enumerate(stream.tasks) for k, r in enumerate(task.rows)
        }
        self.labels = {}
        rng = np.random.default_rng(setting.seed + 1)
        for (k, t), rows in sorted(self.rows.items(), key=lambda item: item[0][::-1]):
            known = [c for classes in self.tasks[: t + 1] for c in classes]
            noisy = rng.random(len(rows)) < setting.noise
            self.labels[k, t] = np.where(noisy, rng.choice(known, len(rows)), self.y[rows])
        self.keys = [SiteKey.generate() for _ in range(setting.sites)]
        self.honest = {key: self.points(self.rows[key], self.labels[key]) for key in self.rows}

    def points(self, rows: Any, labels: Any, times: int = 1) -> fedran.Points | None:
        """The message about some rows, each of them ``times`` times; None without a group."""
        if not len(rows):
            return None
        H, fingerprint = self.phi(self.X[rows]), self.phi.fingerprint
        points = fedran.condense(H, list(labels), 5, 5, fingerprint)
        return replace(points, counts=points.counts * times) if points.classes else None

    def accuracy(self, head: fedran.Head | None, classes: Sequence[Any] = ()) -> float:
        """Accuracy on the test rows in percent, of some classes or all that were sent."""
        H, y = self.test
        chosen = np.isin(y, list(classes) or [c for task in self.tasks for c in task])
        if head is None:
            return 0.0
        return 100 * float(np.mean(head.predict(H[chosen]) == y[chosen]))

    def envelope(self, site: int, task: int, points: fedran.Points) -> bytes:
        """A signed upload."""
        return seal(
            encode(points),
            self.keys[site],
            federation="attacks",
            client=f"site-{site + 1}",
            task=f"task-{task + 1}",
            fingerprint=self.phi.fingerprint.hash,
        ).to_bytes()

    @contextmanager
    def store(self) -> Iterator[Store]:
        """An empty store whose roster lists all sites."""
        with tempfile.TemporaryDirectory() as folder:
            roster = Roster({f"site-{i + 1}": key.public for i, key in enumerate(self.keys)})
            roster.save(Path(folder) / "roster.toml")
            with closing(Store.open(Path(folder), self.settings)) as store:
                yield store


Forge = Callable[[World, int, int], "fedran.Points | None"]


def send(
    world: World,
    store: Store,
    task: int,
    forge: Forge | None = None,
    liars: Sequence[int] = (),
    *,
    first: bool = False,
    without: Collection[str] = (),
) -> None:
    """Send what all sites but some say about a task, liars last or first."""
    sites = sorted(range(world.setting.sites), key=lambda k: (k in liars) != first)
    for site in (k for k in sites if f"site-{k + 1}" not in without):
        honest = world.honest[site, task]
        points = forge(world, site, task) if forge and site in liars else honest
        if points is not None:
            receipt = store.receive(world.envelope(site, task, points))
            assert receipt.outcome == "accepted", receipt


@dataclass
class Streams:
    """What honest streams of one kind gave."""

    rounds: int = 0
    alarms: list[str] = field(default_factory=list)
    worst: float = 0.0
    """Points by which the served head is worse than the one of everything that does not wait."""
    waiting: list[float] = field(default_factory=list)
    """Share of the classes that wait after the last task."""


def rounds_of(setting: Setting) -> list[int]:
    """The tasks after which a head is solved: all of digits, some of the larger ones."""
    last = TASKS[setting.data]
    return list(range(last)) if setting.data == "digits" else [1, last // 2 - 1, last - 1]


def honest_stream(setting: Setting, found: Streams) -> None:
    """Send an honest stream, and count what is set aside."""
    world, chosen = World(setting), rounds_of(setting)
    with world.store() as store:
        for task in range(len(world.tasks)):
            send(world, store, task)
            if task not in chosen:
                continue
            blob, _ = update_head(store, world.validation, f"task-{task + 1}")
            aside = judged(store)["set_aside"]
            found.rounds += 1
            alarms = [a for a in aside if not a["waits"]]
            found.alarms += [f"{a['client']} {a['label']} ({a['reason']})" for a in alarms]
            waits = [(a["client"], a["label"]) for a in aside if a["waits"]]
            if alarms:
                head = fedran.decode(blob, fedran.Head)
                every = store.solve(waits)
                classes = every.classes if every else ()
                loss = world.accuracy(every, classes) - world.accuracy(head, classes)
                found.worst = max(found.worst, loss)
        found.waiting.append(len({label for _, label in waits}) / len(store.state.classes))


def rotated(classes: Sequence[Any]) -> dict[Any, Any]:
    """Each class called the next one."""
    return dict(zip(classes, [*classes[1:], *classes[:1]], strict=True))


def relabelled(times: int = 1, share: Callable[[int, int], float] = lambda *_: 1.0) -> Forge:
    """The classes of the task exchanged in a circle."""

    def forge(world: World, site: int, task: int) -> fedran.Points | None:
        rows, names = world.rows[site, task], rotated(world.tasks[task])
        lie = np.random.default_rng(task).random(len(rows)) < share(task, len(world.tasks))
        honest = world.labels[site, task].tolist()
        labels = [names.get(y, y) if no else y for y, no in zip(honest, lie, strict=True)]
        return world.points(rows, labels, times)

    return forge


def growing(world: World, site: int, task: int) -> fedran.Points | None:
    """Labels flipped for a share of the rows that grows from task to task, and more rows."""
    return relabelled(1 + task // 2, lambda t, T: (t + 1) / T)(world, site, task)


def all_classes(world: World, site: int, task: int) -> fedran.Points | None:
    """Every class so far called the next one."""
    names = rotated([c for classes in world.tasks[: task + 1] for c in classes])
    labels = [names.get(y, y) for y in world.labels[site, task].tolist()]
    return world.points(world.rows[site, task], labels)


def one_class(world: World, liar: int) -> tuple[Any, Any]:
    """The class of which the liar has most rows that another site has too, and the next one."""
    best, most = (0, world.tasks[0][0]), -1
    for task, classes in enumerate(world.tasks):
        for c in classes:
            of = [int((world.labels[k, task] == c).sum()) for k in range(world.setting.sites)]
            if max(n for k, n in enumerate(of) if k != liar) >= 20 and of[liar] > most:
                best, most = (task, c), of[liar]
    return best[1], rotated(world.tasks[best[0]])[best[1]]


def called(early: bool) -> Forge:
    """One class called another one, or called so before that class exists."""

    def forge(world: World, site: int, task: int) -> fedran.Points | None:
        c, d = one_class(world, site)
        if early:
            d = next((x for classes in world.tasks[1:] for x in classes if x != c), d)
        labels = [d if y == c else y for y in world.labels[site, task].tolist()]
        return world.points(world.rows[site, task], labels)

    return forge


def next_rows(world: World, site: int, task: int) -> fedran.Points | None:
    """Rows of the next task's classes under the labels of this one."""
    after = (task + 1) % len(world.tasks)
    names = dict(zip(world.tasks[after], world.tasks[task], strict=False))
    honest = world.labels[site, after].tolist()
    return world.points(world.rows[site, after], [names.get(y, y) for y in honest])


def fake(times: int) -> Forge:
    """All rows of a task as a class that does not exist."""

    def forge(world: World, site: int, task: int) -> fedran.Points | None:
        if task != len(world.tasks) // 2:
            return world.honest[site, task]
        rows = world.rows[site, task]
        return world.points(rows, [10_000] * len(rows), times)

    return forge


ATTACKS: list[tuple[str, Forge, int, bool]] = [
    ("flip", relabelled(), 1, False),
    ("flip, sent first", relabelled(), 1, True),
    ("flip, rows x3", relabelled(3), 1, False),
    ("flip, rows x10", relabelled(10), 1, False),
    ("flip, rows x10, sent first", relabelled(10), 1, True),
    ("flip, rows x100", relabelled(100), 1, False),
    ("all classes rotated", all_classes, 1, False),
    ("flips grow, rows up to x5", growing, 1, False),
    ("rows of the next task's classes", next_rows, 1, False),
    ("one class called another", called(False), 1, False),
    ("one class called a later one", called(True), 1, False),
    ("fake class", fake(1), 1, False),
    ("fake class, rows x100", fake(100), 1, False),
    ("two sites flip", relabelled(), 2, False),
    ("two sites flip, rows x3", relabelled(3), 2, False),
]
"""Name, what liars send, how many of the five lie, and whether they send first."""
FEWER = (
    "flip",
    "flip, rows x100",
    "one class called another",
    "two sites flip",
    "flips grow, rows up to x5",
)
"""Those that are measured on CIFAR-100."""


@dataclass
class Attacked:
    """What one kind of attack did to some streams."""

    unguarded: list[float] = field(default_factory=list)
    """Points that the head of every upload loses to the one without what was lied about ..."""
    lost: list[float] = field(default_factory=list)
    """... and that the served one loses."""
    liars: int = 0
    named: int = 0
    """Liars of which something is set aside."""
    innocent: int = 0
    """Honest sites of which something is set aside."""
    healed: list[bool] = field(default_factory=list)
    """Whether ``forget`` of those named gave the head of a store that never saw them."""

    def cells(self) -> str:
        """The cells of a row."""
        healed = f"{sum(self.healed)} of {len(self.healed)}" if self.healed else "-"
        return (
            f"{len(self.lost)} | {np.mean(self.unguarded):+.1f} | {np.mean(self.lost):+.1f} | "
            f"{max(self.lost):+.1f} | {self.named} of {self.liars} | {self.innocent} | {healed} |"
        )


def attack(
    world: World, forge: Forge, liars: Sequence[int], first: bool, check: bool, found: Attacked
) -> None:
    """Send a stream with liars, and add what the gate made of it."""
    T = len(world.tasks)
    lied = set().union(*(lies(world, forge, site) for site in liars))
    with world.store() as store:
        for task in range(T):
            send(world, store, task, forge, liars, first=first)
            if task in (T // 2, T - 1):
                blob, _ = update_head(store, world.validation, f"task-{task + 1}")
        aside = judged(store)["set_aside"]
        waits = [(a["client"], a["label"]) for a in aside if a["waits"]]
        named = {a["client"] for a in aside if not a["waits"]}
        truth = store.solve([*waits, *lied])
        classes = truth.classes if truth else ()
        head = fedran.decode(blob, fedran.Head) if blob else None
        every, served, best = (world.accuracy(h, classes) for h in (store.solve(()), head, truth))
        found.unguarded.append(best - every)
        found.lost.append(best - served)
        found.liars += len(liars)
        found.named += len(named & {f"site-{k + 1}" for k in liars})
        found.innocent += len(named - {f"site-{k + 1}" for k in liars})
        if check and named:
            for client in sorted(named):
                store.forget(client, None, "operator", SiteKey.generate())
            update_head(store, world.validation, "forget")
            healed = (store.folder / "head.fedran").read_bytes()
            with world.store() as other:
                for task in range(T):
                    send(world, other, task, forge, liars, without=named)
                found.healed.append(healed == update_head(other, world.validation, "other")[0])


def lies(world: World, forge: Forge, site: int) -> set[tuple[str, Any]]:
    """The parts of a site's uploads that differ from the honest ones."""
    found: set[tuple[str, Any]] = set()
    for task in range(len(world.tasks)):
        forged, honest = forge(world, site, task), world.honest[site, task]
        classes = forged.classes if forged else ()
        for c in classes:
            if honest is None or c not in honest.classes or not same(forged, honest, c):
                found.add((f"site-{site + 1}", c))
    return found


def same(a: Any, b: Any, label: Any) -> bool:
    """Whether two messages say the same about a class."""
    rows = [m.codes == m.classes.index(label) for m in (a, b)]
    return np.array_equal(a.means[rows[0]], b.means[rows[1]]) and np.array_equal(
        a.counts[rows[0]], b.counts[rows[1]]
    )


HONEST = """| data | beta | sites | label noise | validation rows per class | streams | rounds | \
false alarms | largest loss | classes that wait |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"""
ATTACKED = """| data | beta | validation rows per class | attack | streams | lost without the gate \
| lost, mean | lost, most | liars named | honest sites named | `forget` heals |
|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|"""


def honest_rows(name: str, seeds: range) -> Iterator[str]:
    """The lines of the table of honest sites."""
    kinds = itertools.product((0.1, 0.5), (5, 20), (0.0, 0.1), (0, 20))
    for beta, sites, noise, rows in kinds:
        if name != "digits" and (rows or sites == 20):
            continue
        found = Streams()
        for seed in seeds:
            honest_stream(Setting(name, beta, sites, noise, rows, seed), found)
        print(*found.alarms, sep="\n", end="", flush=True)
        yield (
            f"| {dataset_title(name)} | {beta} | {sites} | {noise:.0%} | {rows or '-'} | "
            f"{len(seeds)} | {found.rounds} | {len(found.alarms)} | {found.worst:.1f} | "
            f"{np.mean(found.waiting):.0%} |"
        )


def attacked_rows(name: str, seeds: range) -> Iterator[str]:
    """The lines of the table of liars."""
    for beta, rows in itertools.product((0.1, 0.5), (0, 20)):
        if rows and name != "digits":
            continue
        worlds = [World(Setting(name, beta, 5, 0.0, rows, seed)) for seed in seeds]
        for title, forge, liars, first in ATTACKS:
            if name == "digits" or title in FEWER:
                found = Attacked()
                for world in worlds:
                    check = name == "digits" or title == "flip"
                    attack(world, forge, [4, 3][:liars], first, check, found)
                shown = f"| {dataset_title(name)} | {beta} | {rows or '-'} | {title} | "
                yield shown + found.cells()


def main() -> None:
    """Measure all or some data, and write their lines of the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=NAMES, nargs="*")
    only, path = parser.parse_args().only, ROOT / "results" / "attacks.md"
    for name in only or NAMES:
        seeds, tables = range(1, STREAMS.get(name, 1) + 1), list[list[str]]()
        for made in (honest_rows(name, seeds), attacked_rows(name, seeds)):
            tables.append([])
            for row in made:
                print(row, flush=True)
                tables[-1].append(row)
        text = path.read_text()
        for head, rows in zip((HONEST, ATTACKED), tables, strict=True):
            before, after = text.split(head)
            old, _, rest = after.partition("\n\n")
            kept = [line for line in old.splitlines() if f"| {dataset_title(name)} |" not in line]
            text = before + head + "\n".join([*(kept or [""]), *rows]) + "\n\n" + rest
        measured = rf"^- {re.escape(dataset_title(name))}: .*$"
        today = f"- {dataset_title(name)}: measured on {datetime.date.today()}."
        path.write_text(re.sub(measured, today, text, flags=re.M))


if __name__ == "__main__":
    main()
