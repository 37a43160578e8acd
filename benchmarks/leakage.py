"""What messages and heads reveal: results/leakage.md, and a table of the docs.

One of several sites sends its rows of one task. Non-members are the rows of as many other sites of
the same task and the test rows of its classes. Takes about ten minutes on one quiet core. Messages
that are in results/leakage.ndjson already are not measured again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import fedran
from choosing import Lines
from fedran.core.labels import recode
from fedran.core.private.dp import Budget, Mechanism
from fedran.core.private.noisy_sums import NoisySums, noisy_ridge
from fedran.core.private.sketch_sums import blind_omega, sketch_sums
from fedran.core.solve.nystrom import sketch_to_summary
from fedran.data.catalogue import load_dataset
from fedran.leakage import Leakage, measure
from fedran.leakage.attacks import GAP, HEADS, MEAN, NEAREST, SCATTER, SPAN
from fedran.leakage.evidence import Evidence, Moments, Rows, class_counts
from fedran.leakage.membership import LEAST_PER_CLASS, SURE, Number, separate
from fedran.leakage.meter import SINGLE
from fedran.wire.sizes import human_bytes
from fedran_bench.results.result import dataset_title
from fedran_bench.streams import dirichlet

ROOT = Path(__file__).resolve().parent.parent
DATASETS = ("cifar100-efficientnet_lite0", "cifar100-vit_ti16", "digits")
STREAM, CLASSES, SITES, COHORT, BETA = 1993, 50, 20, 10, 0.5
SMALL_SITES, SMALL_COHORT = 6, 3
"""Of a set with fewer classes, all of which are in the task."""
M, SKETCH = 4096, 512
SETTING = {
    "study": "leakage",
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
EARLIER = {
    "shadow heads": HEADS,
    "Mahalanobis distance": SCATTER,
    "Mahalanobis distance, damped": SCATTER,
}
"""Attacks of an earlier version, in lines that were not measured again."""
Line = dict[str, Any]
"""What was measured of one message."""
Message = fedran.Points | fedran.Summary | NoisySums | fedran.Head


class World:
    """The rows of all sites of one task; the first ``COHORT`` take part."""

    def __init__(self, dataset: str) -> None:
        data = load_dataset(dataset)
        rng = np.random.default_rng(STREAM)
        all_classes = np.unique(data.y_train)
        self.classes = sorted(int(c) for c in rng.permutation(all_classes)[:CLASSES])
        rows = [np.flatnonzero(data.y_train == c) for c in self.classes]
        small = len(all_classes) <= CLASSES
        n_sites, cohort = (SMALL_SITES, SMALL_COHORT) if small else (SITES, COHORT)
        sites = dirichlet(rows, n_sites, BETA, rng)
        kind = "hellinger" if data.nonnegative else "cosine"
        self.phi = fedran.RandomFeatures(data.X_train.shape[1], M, kind)
        self.prepared = fedran.KernelFeatures(data.X_train.shape[1], kind)
        self.cohort = [(data.X_train[r], data.y_train[r]) for r in sites[:cohort]]
        sizes = [len(y) for _, y in self.cohort]
        self.site = int(np.argsort(sizes)[cohort // 2])
        self.Z, self.y = self.cohort[self.site]
        rest = np.concatenate(sites[cohort:])
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

    def points(self, group_size: int, min_group: int = 1, step: float = 1.0):
        """The site's points as the server decodes them, and their size."""
        return sent(self._points(self.Z, self.y, group_size, min_group), None, step)

    def head(self, group_size: int, min_group: int, landmarks: int):
        """The head of the points of the cohort as a site decodes it, and its size."""
        server = fedran.Aggregator(fingerprint=self.prepared.fingerprint)
        for i, (Z, y) in enumerate(self.cohort):
            points = sent(self._points(Z, y, group_size, min_group), None)[0]
            server.absorb(points, client=f"site-{i}", task="task")
        return sent(server.solve(landmarks=landmarks), None)

    def _points(self, Z: np.ndarray, y: np.ndarray, group_size: int, min_group: int):
        phi = self.prepared
        return fedran.condense(phi(Z), y, group_size, min_group, phi.fingerprint)

    def secure_sum(self):
        """What a server decodes from the sum over the cohort, and the size of one upload."""
        omega = blind_omega(M, SKETCH, (STREAM, 0))
        total = sum(sketch_sums(self.phi(Z), y, self.classes, omega) for Z, y in self.cohort)
        return sketch_to_summary(total, omega, self.phi.fingerprint), 4 * len(total.vector())

    def noisy_sum(self, epsilon: float):
        """The cohort's sum with noise for every row, and the size of one upload."""
        mechanism = Mechanism(self.phi.in_features, Budget(epsilon))
        X = self.phi.prepare(np.concatenate([Z for Z, _ in self.cohort]))
        y = np.concatenate([y for _, y in self.cohort])
        random = np.random.default_rng(STREAM).bytes
        size = 4 * mechanism.size(len(self.classes))
        return mechanism.privatise(X, y, self.classes, random), size


def sent(
    message: fedran.Points | fedran.Summary | fedran.Head,
    precision: str | None,
    step: float = 1.0,
) -> tuple[Any, int]:
    blob = fedran.encode(message, precision, step=step)
    return fedran.decode(blob), len(blob)


KINDS: tuple[tuple[str, Callable[[World], tuple[Message, int]], bool], ...] = (
    ("summary, all columns, float64", lambda w: w.summary("float64", None), False),
    ("not centred, r = 256, float64", lambda w: w.summary("float64", 256, None), False),
    ("summary, r = 256 (default)", lambda w: w.summary(None, 256), False),
    ("summary, r = 64", lambda w: w.summary(None, 64), False),
    ("points, every row", lambda w: w.points(1), False),
    ("points, every row, step 3", lambda w: w.points(1, step=3.0), False),
    ("points, groups of 2", lambda w: w.points(2), False),
    ("points, groups of 5", lambda w: w.points(5), False),
    ("points, groups of 10", lambda w: w.points(10), False),
    ("points, at least 5", lambda w: w.points(5, 5), False),
    ("points, at least 10", lambda w: w.points(10, 10), False),
    ("head of every row, 4096 landmarks", lambda w: w.head(1, 1, 4096), True),
    ("head of every row, 1024 landmarks", lambda w: w.head(1, 1, 1024), True),
    ("head of groups of at least 5", lambda w: w.head(5, 5, 4096), True),
    ("head of groups of at least 5, 512 landmarks", lambda w: w.head(5, 5, 512), True),
    (f"secure sum of {COHORT} sites", lambda w: w.secure_sum(), True),
    (f"DP sum of {COHORT} sites, ε = 8", lambda w: w.noisy_sum(8.0), True),
    (f"DP sum of {COHORT} sites, ε = 3", lambda w: w.noisy_sum(3.0), True),
    (f"DP sum of {COHORT} sites, ε = 1", lambda w: w.noisy_sum(1.0), True),
)
"""Name, message, and whether it describes the rows of all sites that take part."""


def figures(name: str, w: World, message: Message, size: int, whole: bool) -> dict[str, object]:
    """All figures of one message."""
    started = time.perf_counter()
    some = np.flatnonzero(np.isin(w.other_y, message.classes))[:REFERENCE]
    others = w.other[some], w.other_y[some]
    if isinstance(message, NoisySums):
        line = noisy_figures(message, w, *others)
    else:
        found, counts = measure(message, w.Z, w.y, *others, partial=whole), {}
        if not isinstance(message, fedran.Head):
            counts = dict(zip(message.classes, class_counts(message), strict=True))
        line = _fields(found, counts)
    if isinstance(message, fedran.Summary) and whole:  # which site does a row come from?
        elsewhere = [s for i, s in enumerate(w.cohort) if i != w.site]
        Z, y = (np.concatenate(part) for part in zip(*elsewhere, strict=True))
        line["site"] = measure(message, w.Z, w.y, Z, y, partial=True).auc
    seconds = round(time.perf_counter() - started)
    return {"name": name, "bytes": size, "whole": whole, "seconds": seconds, **line}


def noisy_figures(sums: NoisySums, w: World, Z: np.ndarray, y: np.ndarray) -> Line:
    """Of sums of prepared rows with noise: the attacks on membership that need no exact numbers."""
    rng, known = np.random.default_rng(0), list(sums.classes)
    tested = [c for c in known if np.sum(y == c) >= LEAST_PER_CLASS and np.any(w.y == c)]
    codes = {c: i for i, c in enumerate(tested)}
    inside, outside = (
        Rows(w.phi.prepare(rows[kept]), np.array([codes[c] for c in labels[kept]]))
        for rows, labels in ((w.Z, w.y), (Z, y))
        for kept in [np.isin(labels, tested)]
    )
    found = separate(
        noisy_evidence(sums, tested),
        lambda rows: noisy_evidence(noisy_like(rows, len(tested), sums, rng), range(len(tested))),
        inside,
        outside,
        rng,
    )
    description = f"noisy sums of about {sums.counts.sum():,.0f} rows, {len(known)} classes"
    return _fields(Leakage(description, len(inside), len(outside), tuple(found), {}), {})


def noisy_evidence(sums: NoisySums, classes: Sequence[int]) -> Evidence:
    """The scatter is what the Gram exceeds the class means by. Noise makes some of it negative."""

    def columns(of: Sequence[int]) -> np.ndarray:
        return recode(np.arange(len(classes)), tuple(classes), tuple(of))

    own, counts = columns(sums.classes), np.maximum(sums.counts, 1.0)
    means = (sums.sums / counts).T
    values, vectors = np.linalg.eigh(sums.gram - (means.T * counts) @ means)
    roots = (vectors * np.sqrt(np.abs(values))).astype(np.float32)
    moments = Moments(
        means=means[own].astype(np.float32),
        counts=counts[own],
        factor=roots[:, values > 0],
        surplus=roots[:, values <= 0],
    )
    summary = sums.summary()  # without the classes that the noise hides
    server = fedran.Aggregator(summary.out_features)
    server.absorb(summary, client="attacked", task="attacked")
    head = server.solve(noisy_ridge(summary.accounts, summary.out_features))
    return Evidence(head, columns(summary.classes), moments)


def noisy_like(rows: Rows, n_classes: int, like: NoisySums, rng: np.random.Generator) -> NoisySums:
    """Sums of other rows with noise of the same variances."""
    X = rows.X.astype(np.float64)
    d = X.shape[1]
    half = np.triu(rng.standard_normal((d, d)), 1) * np.sqrt(like.gram_variance / 2)
    diagonal = rng.standard_normal(d) * np.sqrt(like.gram_variance)
    onehot = np.eye(n_classes)[rows.codes]
    return replace(
        like,
        classes=tuple(range(n_classes)),
        gram=X.T @ X + half + half.T + np.diag(diagonal),
        sums=X.T @ onehot + np.sqrt(like.sums_variance) * rng.standard_normal((d, n_classes)),
        counts=onehot.sum(axis=0) + np.sqrt(like.counts_variance) * rng.standard_normal(n_classes),
    )


def _fields(found: Leakage, counts: dict[object, float]) -> dict[str, object]:
    numbers = {n.attack: n for n in found.numbers}
    single = numbers.get(SINGLE, Number(SINGLE, 0, "rows", tries=0))
    membership = [n for n in found.numbers if n.measure == "auc"]
    small = [found.cosines[c] for c, n in counts.items() if 1 < round(float(n)) < 5]
    return {
        "description": found.description,
        "members": found.members,
        "reference": found.reference,
        "single": [int(single.value), single.tries],
        "cosine": float(np.mean(small)) if small else None,
        "auc": found.auc,
        "tpr": numbers[SURE].value if SURE in numbers else None,
        "attacks": {n.attack: n.value for n in membership},
        "error": membership[0].error,
    }


def write_pages(lines: list[Line]) -> None:
    """Write results/leakage.md, and the short table between the marks of the privacy page."""
    order = [name for name, _, _ in KINDS]
    lines = sorted(lines, key=lambda m: order.index(m["name"]))
    parts = ["# What messages reveal", _about(lines)]
    for dataset in DATASETS:
        own = [m for m in lines if m["dataset"] == dataset]
        days = " to ".join(sorted({m["date"] for m in own}))
        made = f"The site has {own[0]['members']:,} rows. Made by {own[0]['command']} on {days}."
        rows = [[_name(m), human_bytes(m["bytes"]), *_found(m)] for m in own]
        parts += [f"## {dataset_title(dataset)}", made, _table(HEADINGS, rows)]
    (ROOT / "results" / "leakage.md").write_text("\n\n".join(parts) + "\n")
    short, headings = [[name] for name in order], ["message"]
    for dataset in DATASETS:
        backbone = dataset_title(dataset).partition(", ")[2] or dataset_title(dataset)
        headings += [f"{backbone}: {h}" for h in ("AUC", "TPR at 0.1 %", "head alone")]
        for name, row in zip(order, short, strict=True):
            (m,) = (m for m in lines if (m["dataset"], m["name"]) == (dataset, name))
            row[0] = max(row[0], _name(m))
            row += _found(m)[2:5]
    privacy = ROOT / "docs" / "explanation" / "privacy.md"
    before, _, rest = privacy.read_text().partition(FIRST_MARK)
    _, _, after = rest.partition(LAST_MARK)
    table = _table(headings, short)
    privacy.write_text(f"{before}{FIRST_MARK}\n\n{table}\n\n{LAST_MARK}{after}")


HEADINGS = (
    *("message", "size", "single rows", "small classes"),
    *("AUC", "TPR at 0.1 %", "head alone"),
    *("span or groups", "class mean", "scatter", "which site"),
)


def _name(m: Line) -> str:
    """The message, marked if an earlier version attacked it."""
    return m["name"] + " *" * any(attack in EARLIER for attack in m["attacks"])


def _found(m: Line) -> list[str]:
    """The cells of a message, in the order of ``HEADINGS`` from single rows on."""

    def strongest(*attacks: str) -> str:
        found = (v for a, v in m["attacks"].items() if EARLIER.get(a, a) in attacks)
        return _number(max(found, default=None))

    hits, tries = m["single"]
    rate = "-" if m["tpr"] is None else f"{100 * m['tpr']:.2f} %"
    return [
        *(f"{hits} of {tries}" if tries else "-", _number(m["cosine"])),
        *(_number(m["auc"]), rate, strongest(HEADS)),
        *(strongest(SPAN, NEAREST, GAP), strongest(MEAN), strongest(SCATTER)),
        _number(m.get("site")),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    first, *others = ("| " + " | ".join(line) + " |" for line in (headings, *rows))
    return "\n".join([first, "|---|" + "---:|" * (len(headings) - 1), *others])


def _about(lines: list[Line]) -> str:
    m = lines[0]
    return f"""Stream {m["stream"]}: a task of {m["classes"]} classes, divided among {m["sites"]}
sites (Dirichlet, β = {m["beta"]:g}). {m["cohort"]} of the sites take part. The attacked message is
that of the middle one of them by size, or a sum over all of them. Members are the rows of this
site. Other rows are {m["reference"]:,} rows of its classes from the sites that do not take part
and from the test set. Summaries have M = {m["out_features"]} random features. The secure sum has a
sketch of {m["sketch"]} columns. The noisy sums (DP) are of raw features, with δ = {m["delta"]:g}.

- Single rows: classes (in points: groups) with one row, and how many of these rows are recovered.
- Small classes: mean cosine of the recovered and the true mean feature of classes with 2 to 4 rows.
- AUC: how well the strongest attack tells rows of the message from other rows of the same classes:
  0.5 is guessing, 1 is certain. The standard error is at most {max(m["error"] for m in lines):.3f}.
- TPR at 0.1 %: the share of the rows of the message that this attack finds while it wrongly names
  one in 1,000 other rows.
- Head alone: AUC of someone who has only the classifier that is solved from this message.
- Span or groups, class mean, scatter: AUC of the strongest attack that uses only this part of the
  message. Which site: telling rows of the site from rows of the others in the sum.

An earlier version attacked the messages with a *, on 2026-11-16: with two more attacks on the
scatter, and with likelihoods of scores where now scores are compared.

The attacks are lower bounds: a better one may find more. They are described in
[how to measure what a message reveals](../docs/how-to/leak.md)."""


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
    text = arguments.lines.read_text(encoding="utf-8")
    write_pages([json.loads(line) for line in text.splitlines()])


if __name__ == "__main__":
    main()
