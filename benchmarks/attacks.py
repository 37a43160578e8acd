"""What the server's gate does to honest sites, and to sites that lie.

    FEDRAN_DATA=... python benchmarks/attacks.py     about two hours; writes results/attacks.md
    python benchmarks/attacks.py --only digits   some minutes; prints rows of the tables

Uploads are signed and go through the server's own admission, gate and solve, without sockets. The
results page says what the columns mean.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
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
FINDINGS = """## What the tables show, and where it fails

- No site was set aside in 720 honest rounds. That is no proof of one in 1,000: the test bounds the
  chance under its assumption, and the rounds of one stream resemble each other.
- One liar with points of ViT-Ti: the served head is within 0.1 points of the one without what it
  lied about, with up to 100 times the rows, sent first or last. A single class that was called
  another is not always named: there it did no harm. With EfficientNet it cost up to 0.5 points.
- Digits have few points per site and class. At one site, flips cost up to 4.5 points without
  validation rows (beta 0.5), and up to 8.1 with them, where only one of the classes is named. Two
  liars cost up to 16.7 points, and up to 19.3 with validation rows and beta 0.1.
- Two liars that agree are a majority where one or two other sites have a class. Twice a class of an
  honest site was set aside beside them: digits, beta 0.1, and EfficientNet, beta 0.5, where the
  liars stayed and 21.3 points were lost.
- With five sites and beta 0.1, a quarter to a third of the classes waits, because one site alone
  has them. Where liars are set aside that were the second one, more do."""
"""What the tables show, for the page."""


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
FEWER = (
    "flip",
    "flip, rows x100",
    "one class called another",
    "two sites flip",
    "flips grow, rows up to x5",
)
"""Those that are measured on wide features."""


def attack(world: World, forge: Forge, liars: Sequence[int], first: bool, check: bool) -> list[str]:
    """The cells of a row: accuracies, who is named, and whether ``forget`` heals."""
    T = len(world.tasks)
    lied = set().union(*(lies(world, forge, site) for site in liars))
    with world.store() as store:
        for task in range(T):
            send(world, store, task, forge, liars, first=first)
            if task in (T // 2, T - 1):
                blob, _ = update_head(store, world.validation, f"task-{task + 1}")
        aside = judged(store)["set_aside"]
        waits = [(a["client"], a["label"]) for a in aside if a["waits"]]
        named = [(a["client"], a["label"], a["evidence"]) for a in aside if not a["waits"]]
        truth = store.solve([*waits, *lied])
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


def honest_settings(name: str) -> Iterator[tuple[tuple[Any, ...], list[Setting]]]:
    """Kinds of honest streams with their settings."""
    streams = {"digits": 5, "cifar100-efficientnet_lite0": 1}.get(name, 2)
    for beta in (0.1, 0.5):
        for sites in (5, 20):
            for noise in (0.0, 0.1):
                tested = name == "digits" or (sites == 5 and streams > 1)
                for rows in (0, 10, 20) if tested else (0,):
                    key = name, beta, sites, noise, rows
                    yield key, [Setting(*key, seed=seed) for seed in range(1, streams + 1)]


HONEST = """| data | beta | sites | label noise | validation rows per class | streams | rounds | \
false alarms | largest loss | classes that wait |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"""
ATTACKED = """| data, beta | validation rows per class | attack | everything | served | \
without the lies | lost | named | classes that wait | after `forget` |
|---|---:|---|---:|---:|---:|---:|---|---:|---|"""


def main() -> None:
    """Run everything and write the page, or print the rows of some parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=NAMES, nargs="*")
    only = parser.parse_args().only
    honest, attacked = list[str](), list[str]()
    for name in only or NAMES:
        title = dataset_title(name)
        for (_, beta, sites, noise, rows), settings in honest_settings(name):
            found = Streams()
            for setting in settings:
                honest_stream(setting, found)
            honest.append(
                f"| {title} | {beta} | {sites} | {noise:.0%} | {rows or '-'} | {len(settings)} | "
                f"{found.rounds} | {len(found.alarms)} | {found.worst:.1f} | "
                f"{np.mean(found.waiting):.0%} |"
            )
            print(honest[-1], *found.alarms, sep="\n", flush=True)
        for beta in (0.1, 0.5):
            for rows in (0, 20) if "efficientnet" not in name else (0,):
                world = World(Setting(name, beta, 5, 0.0, rows, seed=1))
                for attack_title, forge, liars, first in ATTACKS:
                    if "efficientnet" in name and attack_title not in FEWER:
                        continue
                    check = name == "digits" or attack_title == "flip"
                    cells = attack(world, forge, [4, 3][:liars], first, check)
                    shown = f"| {title}, {beta} | {rows or '-'} | {attack_title} | "
                    attacked.append(shown + " | ".join(cells) + " |")
                    print(attacked[-1], flush=True)
    if not only:
        (ROOT / "results" / "attacks.md").write_text(page(honest, attacked))


def page(honest: list[str], attacked: list[str]) -> str:
    """The results page."""
    rows = ", ".join(f"{dataset_title(name)} {n}" for name, n in ROWS.items())
    return f"""# Sites that lie, and honest ones

Made by `python benchmarks/attacks.py` on {datetime.date.today()}. Uploads go through the server's
own admission, gate and solve. Training rows per class: {rows}. Digits in {TASKS["digits"]} tasks,
the others in {TASKS["cifar100-vit_ti16"]}. Groups of 5 rows, {LANDMARKS} landmarks, default
settings.

## Honest sites

- Rounds: heads that were judged. Every task of digits, and three of the ten tasks of the others.
- False alarms: sites or classes that were set aside.
- Largest loss: accuracy of the head of everything that does not wait, minus that of the served
  one, in points.
- Classes that wait: after the last task, because one site alone has them.

{HONEST}
{chr(10).join(honest)}

## Liars

One of five sites lies, or two. Accuracy on the test rows of the classes that do not wait, after the
last task, in percent: of the head of every upload, of the served one, and of the one without what
was lied about. Lost: points between the last two. Named: what is
set aside, and by which evidence. After `forget`: whether the head of the store without the named
sites is bit for bit that of a store that never saw them, and in service (`-`: not measured, or
nobody is named).

{ATTACKED}
{chr(10).join(attacked)}

{FINDINGS}
"""


if __name__ == "__main__":
    main()
