"""What the server's gate does to honest sites, and to sites that lie.

    FEDRAN_DATA=... python benchmarks/attacks.py          about an hour; writes results/attacks.md
    python benchmarks/attacks.py --only digits            some minutes, no file

Uploads are signed and go through the server's own admission, gate and solve, without sockets. The
results page says what the columns mean.
"""

from __future__ import annotations

import argparse
import datetime
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import fedran
from fedran.data.catalogue import dataset_title, load_dataset
from fedran.data.rows import Rows
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.messages import seal
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.head.head import judged, update_head
from fedran.federation.server.head.validation import ValidationSet
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store.store import Store
from fedran.wire.codec import encode
from fedran_bench.streams import make_stream

ROOT = Path(__file__).resolve().parent.parent
LANDMARKS = 1024
NAMES = ("digits", "cifar100-vit_ti16", "cifar100-efficientnet_lite0")
ROWS = {"digits": 150, "cifar100-vit_ti16": 200, "cifar100-efficientnet_lite0": 100}
"""Training rows per class."""
TASKS = {"digits": 5, "cifar100-vit_ti16": 10, "cifar100-efficientnet_lite0": 10}
TESTED = 40
"""Most test rows per class."""


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
            "attacks", self.X.shape[1], kind, source=setting.data, landmarks=LANDMARKS
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
        points = fedran.condense(self.phi(self.X[rows]), list(labels), 5, 5, self.phi.fingerprint)
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
) -> None:
    """Send what all sites say about a task, liars last or first."""
    sites = sorted(range(world.setting.sites), key=lambda k: (k in liars) != first)
    for site in sites:
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
                head = fedran.decode(blob)
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


def attack(world: World, forge: Forge, liars: Sequence[int], first: bool, check: bool) -> list[str]:
    """The cells of a row: accuracies, who is named, and whether ``forget`` heals."""
    T = len(world.tasks)
    lied = {
        (k, c) for k in liars for t in range(T) for c, n in _wrong(world, forge, k, t).items() if n
    }
    with world.store() as store:
        for task in range(T):
            send(world, store, task, forge, liars, first=first)
            if task in (T // 2, T - 1):
                blob, _ = update_head(store, world.validation, f"task-{task + 1}")
        aside = judged(store)["set_aside"]
        waits = [(a["client"], a["label"]) for a in aside if a["waits"]]
        named = [(a["client"], a["label"], a["evidence"]) for a in aside if not a["waits"]]
        parts = [(f"site-{k + 1}", c) for k, c in lied]
        truth = store.solve([*waits, *parts])
        every = store.solve(())
        head = fedran.decode(blob) if blob else None
        classes = truth.classes if truth else ()
        figures = [world.accuracy(h, classes) for h in (every, head, truth)]
        told = Counter(
            f"{c}{'' if label is None else f' class {label}'}: {e}" for c, label, e in named
        )
        healed = ""
        if check and named:
            for client in {client for client, *_ in named}:
                store.forget(client, None, "operator", SiteKey.generate())
            update_head(store, world.validation, "forget")
            served = (store.folder / "head.fedran").read_bytes()
            gone = {client for client, *_ in named}
            with world.store() as other:
                for task in range(T):
                    for k in range(world.setting.sites):
                        if f"site-{k + 1}" not in gone and world.honest[k, task] is not None:
                            points = forge(world, k, task) if k in liars else world.honest[k, task]
                            if points is not None:
                                other.receive(world.envelope(k, task, points))
                blob, _ = update_head(other, world.validation, "other")
            healed = "yes" if served == blob else "NO"
    waiting = len({label for _, label in waits})
    honest = [c for c, *_ in named if int(c.split("-")[1]) - 1 not in liars]
    shown = ", ".join(list(told)[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")
    if honest:
        shown += " (HONEST: " + ", ".join(sorted(set(honest))) + ")"
    cells = [f"{value:.1f}" for value in figures] + [f"{figures[2] - figures[1]:+.1f}"]
    return [*cells, shown or "-", str(waiting), healed or "-"]


def _wrong(world: World, forge: Forge, site: int, task: int) -> Counter[Any]:
    """Labels of the forged upload, if it differs from the honest one in them."""
    forged, honest = forge(world, site, task), world.honest[site, task]
    if forged is None:
        return Counter()
    rows, known = forged.rows_per_class(), honest.rows_per_class() if honest else {}
    if rows == known and np.array_equal(forged.means, honest.means):
        return Counter()
    if forged.rows_per_class().keys() <= known.keys():
        means = {c: _of(honest, c) for c in known}
        return Counter({c: 1 for c in rows if not np.array_equal(means[c], _of(forged, c))})
    return Counter(
        {c: 1 for c in rows if c not in known or not np.array_equal(_of(honest, c), _of(forged, c))}
    )


def _of(points: fedran.Points, label: Any) -> Any:
    return points.means[points.codes == points.classes.index(label)]


def honest_settings(name: str) -> Iterator[tuple[tuple[Any, ...], list[Setting]]]:
    """Kinds of honest streams with their settings."""
    streams = 5 if name == "digits" else 2
    for beta in (0.1, 0.5):
        for sites in (5, 20):
            for noise in (0.0, 0.1):
                for rows in (0, 10, 20) if name == "digits" or sites == 5 else (0,):
                    key = name, beta, sites, noise, rows
                    yield key, [Setting(*key, seed=seed) for seed in range(1, streams + 1)]


def main() -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=NAMES)
    chosen = parser.parse_args().only
    names = (
        [chosen] if chosen else [n for n in NAMES if n == "digits" or "FEDRAN_DATA" in os.environ]
    )
    lines, start = [], time.monotonic()

    def note(line: str) -> None:
        lines.append(line)
        print(f"{(time.monotonic() - start) / 60:.0f} min", line, flush=True)

    note(
        "| data | beta | sites | label noise | validation rows per class | streams | rounds | "
        "false alarms | largest loss | classes that wait |"
    )
    note("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    details: list[str] = []
    for name in names:
        for (_, beta, sites, noise, rows), settings in honest_settings(name):
            found = Streams()
            for setting in settings:
                honest_stream(setting, found)
            details += [f"{name}, beta {beta}, {sites} sites: {alarm}" for alarm in found.alarms]
            note(
                f"| {dataset_title(name)} | {beta} | {sites} | {noise:.0%} | {rows or '-'} | "
                f"{len(settings)} | {found.rounds} | {len(found.alarms)} | {found.worst:.1f} | "
                f"{np.mean(found.waiting):.0%} |"
            )
    honest_lines, lines = lines, []
    note(
        "| data, beta | validation rows per class | attack | everything | served "
        "| without the lies | lost | named | classes that wait | after `forget` |"
    )
    note("|---|---:|---|---:|---:|---:|---:|---|---:|---|")
    for name in names:
        for beta in (0.1, 0.5) if name != "cifar100-efficientnet_lite0" else (0.1,):
            for rows in (0, 20) if name != "cifar100-efficientnet_lite0" else (0,):
                world = World(Setting(name, beta, 5, 0.0, rows, seed=1))
                for title, forge, liars, first in ATTACKS:
                    who = [4, 3][:liars]
                    cells = attack(
                        world, forge, who, first, check=name == "digits" or title == "flip"
                    )
                    head = f"{dataset_title(name)}, {beta}"
                    note(f"| {head} | {rows or '-'} | {title} | " + " | ".join(cells) + " |")
    if not chosen:
        write(honest_lines, lines, details)


def write(honest_lines: list[str], attack_lines: list[str], details: list[str]) -> None:
    """Write the results page."""
    text = (ROOT / "benchmarks" / "attacks.md.in").read_text()
    shown = "\n".join(f"- {alarm}" for alarm in details) or "None."
    filled = {
        "date": str(datetime.date.today()),
        "honest": "\n".join(honest_lines),
        "alarms": shown,
        "attacks": "\n".join(attack_lines),
    }
    for name, value in filled.items():
        text = text.replace("{" + name + "}", value)
    (ROOT / "results" / "attacks.md").write_text(text)


if __name__ == "__main__":
    main()
