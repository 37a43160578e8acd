"""What each kind of message reveals on CIFAR-100: results/leakage.md, and a table of the docs.

One of ten sites sends its rows of one task. Non-members are the rows of ten other sites of the same
task and the test rows of its classes. Takes about ten minutes on one quiet core. Messages that are
in results/leakage.ndjson already are not measured again.
"""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np

import fedran
from choosing import Lines
from fedran.bench.report.export import markdown_page, pipe_table
from fedran.bench.report.leakage import STUDY, read_leakage, short_table
from fedran.bench.report.pages import leakage_page
from fedran.core.dp import Budget, Mechanism
from fedran.core.nystrom import totals_to_summary
from fedran.core.release import Release
from fedran.core.totals import blind_omega, totals
from fedran.data.catalogue import load_dataset
from fedran.data.partition import dirichlet
from fedran.leakage import Leakage, measure
from fedran.leakage.meter import SEARCHED, SINGLE

ROOT = Path(__file__).resolve().parent.parent
DATASETS = ("cifar100-efficientnet_lite0", "cifar100-vit_ti16")
STREAM, CLASSES, SITES, COHORT, BETA = 1993, 50, 20, 10, 0.5
M, SKETCH = 4096, 512
SETTING = {
    "study": STUDY,
    "command": "python benchmarks/leakage.py",
    "stream": STREAM,
    "classes": CLASSES,
    "sites": SITES,
    "beta": BETA,
    "cohort": COHORT,
    "out_features": M,
    "sketch": SKETCH,
    "delta": 1e-5,
}
"""What every line of results/leakage.ndjson says about its measurement."""
REFERENCE = 10_500
"""Non-members that are tested: enough for a rate at 0.1 % false positives."""
FIRST_MARK, LAST_MARK = "<!-- made by benchmarks/leakage.py -->", "<!-- end -->"
Message = fedran.Summary | fedran.Mixture | Release


class World:
    """The rows of all sites of one task; the first ``COHORT`` take part."""

    def __init__(self, dataset: str) -> None:
        data = load_dataset(dataset)
        rng = np.random.default_rng(STREAM)
        self.classes = sorted(int(c) for c in rng.permutation(100)[:CLASSES])
        rows = [np.flatnonzero(data.y_train == c) for c in self.classes]
        sites = dirichlet(rows, SITES, BETA, rng)
        kind = "hellinger" if data.nonnegative else "cosine"
        self.phi = fedran.RandomFeatures(data.X_train.shape[1], M, kind)
        self.cohort = [(data.X_train[r], data.y_train[r]) for r in sites[:COHORT]]
        sizes = [len(y) for _, y in self.cohort]
        self.site = int(np.argsort(sizes)[COHORT // 2])
        self.Z, self.y = self.cohort[self.site]
        rest = np.concatenate(sites[COHORT:])
        test = np.isin(data.y_test, self.classes)
        other = np.concatenate([data.X_train[rest], data.X_test[test]])
        other_y = np.concatenate([data.y_train[rest], data.y_test[test]])
        held = np.isin(other_y, self.y)
        shuffled = rng.permutation(np.flatnonzero(held))
        self.other, self.other_y = other[shuffled], other_y[shuffled]

    @cached_property
    def H(self) -> np.ndarray:
        """Random features of the site's rows."""
        return self.phi(self.Z)

    def summary(self, precision: str | None, rank: int | None, center: str | None = "class"):
        """The site's summary as the server decodes it, and its size."""
        s = fedran.summarize(self.H, self.y, rank, center=center, fingerprint=self.phi.fingerprint)
        return sent(s, precision)

    def mixture(self, group_size: int, min_group: int):
        """The site's mixture as the server decodes it, and its size."""
        return sent(fedran.condense(self.Z, self.y, self.phi, group_size, min_group), None)

    def secure_sum(self):
        """What a server decodes from the sum over the cohort, and the size of one upload."""
        omega = blind_omega(M, SKETCH, (STREAM, 0))
        total = sum(totals(self.phi(Z), y, self.classes, omega) for Z, y in self.cohort)
        return totals_to_summary(total, omega, self.phi.fingerprint), 4 * len(total.vector())

    def noisy_sum(self, epsilon: float):
        """The cohort's sum with noise for every row, and the size of one upload."""
        mechanism = Mechanism(self.phi.in_features, Budget(epsilon))
        X = self.phi.prepare(np.concatenate([Z for Z, _ in self.cohort]))
        y = np.concatenate([y for _, y in self.cohort])
        random = np.random.default_rng(STREAM).bytes
        size = 4 * mechanism.size(len(self.classes))
        return mechanism.privatise(X, y, self.classes, random), size


def sent(message: fedran.Summary | fedran.Mixture, precision: str | None) -> tuple[Message, int]:
    blob = fedran.encode(message, precision)
    return fedran.decode(blob), len(blob)


KINDS: tuple[tuple[str, Callable[[World], tuple[Message, int]], bool], ...] = (
    ("summary, all columns, float64", lambda w: w.summary("float64", None), False),
    ("not centred, r = 256, float64", lambda w: w.summary("float64", 256, None), False),
    ("summary, r = 256 (default)", lambda w: w.summary(None, 256), False),
    ("summary, r = 64", lambda w: w.summary(None, 64), False),
    ("mixture, min_group 1", lambda w: w.mixture(5, 1), False),
    ("mixture, min_group 5 (default)", lambda w: w.mixture(6, 5), False),
    ("mixture, min_group 10", lambda w: w.mixture(15, 10), False),
    (f"secure sum of {COHORT} sites", lambda w: w.secure_sum(), True),
    (f"DP sum of {COHORT} sites, ε = 8", lambda w: w.noisy_sum(8.0), True),
    (f"DP sum of {COHORT} sites, ε = 3", lambda w: w.noisy_sum(3.0), True),
    (f"DP sum of {COHORT} sites, ε = 1", lambda w: w.noisy_sum(1.0), True),
)
"""Name, message, and whether it describes the rows of all sites that take part."""


def figures(name: str, w: World, message: Message, size: int, whole: bool) -> dict[str, object]:
    """All figures of one message."""
    started = time.perf_counter()
    phi = w.phi if isinstance(message, Release) else None
    some = np.flatnonzero(np.isin(w.other_y, message.classes))[:REFERENCE]
    found = measure(message, w.Z, w.y, w.other[some], w.other_y[some], partial=whole, phi=phi)
    line = _fields(found, dict(zip(message.classes, message.counts, strict=True)))
    if isinstance(message, fedran.Summary) and whole:  # which site does a row come from?
        elsewhere = [s for i, s in enumerate(w.cohort) if i != w.site]
        Z, y = (np.concatenate(part) for part in zip(*elsewhere, strict=True))
        line["site"] = measure(message, w.Z, w.y, Z, y, partial=True, phi=phi).auc
    seconds = round(time.perf_counter() - started)
    return {"name": name, "bytes": size, "whole": whole, "seconds": seconds, **line}


def _fields(found: Leakage, counts: dict[object, float]) -> dict[str, object]:
    numbers = {n.attack: n for n in found.numbers}
    membership = [n for n in found.numbers if n.measure == "auc"]
    small = [found.cosines[c] for c, n in counts.items() if 1 < round(float(n)) < 5]
    tries = {
        field: [int(numbers[attack].value), numbers[attack].tries] if attack in numbers else [0, 0]
        for field, attack in (("single", SINGLE), ("found", SEARCHED))
    }
    return {
        "description": found.description,
        "members": found.members,
        "reference": found.reference,
        **tries,
        "cosine": float(np.mean(small)) if small else None,
        "auc": found.auc,
        "tpr": found.tpr,
        "attacks": {n.attack: n.value for n in membership},
        "error": membership[0].error,
    }


def write_pages() -> None:
    """Write results/leakage.md, and the short table between the marks of the privacy page."""
    order = [name for name, _, _ in KINDS]
    measured = sorted(read_leakage(ROOT / "results"), key=lambda m: order.index(m.name))
    measured.sort(key=lambda m: DATASETS.index(m.dataset))
    page = leakage_page(measured)
    text = f"# {page.title}\n\n{markdown_page(page)}\n\n{ATTACKS}"
    (ROOT / "results" / "leakage.md").write_text(text)
    privacy = ROOT / "docs" / "explanation" / "privacy.md"
    before, _, rest = privacy.read_text().partition(FIRST_MARK)
    _, _, after = rest.partition(LAST_MARK)
    rows = pipe_table(short_table(measured))
    privacy.write_text(f"{before}{FIRST_MARK}\n\n{rows}\n\n{LAST_MARK}{after}")


ATTACKS = """The attacks are described in
[how to measure what a message reveals](../how-to/leak.md).
"""


def main() -> None:
    """Measure every message, one line of JSON each, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=Path, default=ROOT / "results" / "leakage.ndjson")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    arguments = parser.parse_args()
    done = Lines(arguments.lines)
    for dataset in () if arguments.table else DATASETS:
        w = World(dataset)
        print(dataset, len(w.y), "members", len(w.other_y), "others", flush=True)
        for name, make, whole in KINDS:
            if done.has({"dataset": dataset, "name": name}):
                continue
            message, size = make(w)
            line = {
                **SETTING,
                "dataset": dataset,
                "date": str(datetime.date.today()),
                **figures(name, w, message, size, whole),
            }
            done.add(line)
            print(name, line["auc"], line["seconds"], "s", flush=True)
    write_pages()


if __name__ == "__main__":
    main()
