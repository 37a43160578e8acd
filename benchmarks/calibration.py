"""Probabilities and "don't know" on held-out rows, beside MAPIE's conformal sets.

    python -m pip install --no-deps --target /tmp/mapie mapie
    PYTHONPATH=/tmp/mapie python benchmarks/calibration.py

MAPIE is needed by this benchmark only. Our models calibrate on leave-one-out scores of all
training rows, or on the added records of five sites. MAPIE keeps a fifth of the training rows for
its calibration and takes our classifier, fitted on the rest. CIFAR-100 features are used where
FEDRAN_DATA names them. Nothing is chosen on test rows. Writes results/calibration.md.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mapie
import numpy as np
from mapie.classification import SplitConformalClassifier
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import train_test_split

from fedran import FederatedScaler, FedRANClassifier
from fedran.data.catalogue import load_dataset

RESULTS = Path(__file__).resolve().parent.parent / "results"
SEEDS = range(3)
SITES = 5
Split = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


def digits(seed: int) -> Split:
    X, y = load_digits(return_X_y=True)
    train, test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=seed)
    scaler = FederatedScaler().fit(train)
    return scaler.transform(train), y_train, scaler.transform(test), y_test


def cifar100(seed: int) -> Split:
    """6,000 training and 3,000 test rows of EfficientNet-Lite0 features, drawn with the seed."""
    data = load_dataset("cifar100-efficientnet_lite0")
    rng = np.random.default_rng(seed)
    a = rng.permutation(len(data.y_train))[:6_000]
    b = rng.permutation(len(data.y_test))[:3_000]
    _, codes = np.unique(data.y_train, return_inverse=True)
    _, test_codes = np.unique(data.y_test, return_inverse=True)
    return data.X_train[a], codes[a], data.X_test[b], test_codes[b]


SETS = {
    "digits": (digits, {"out_features": 1024}, (0.01, 0.02, 0.05)),
    "CIFAR-100": (
        cifar100,
        {"out_features": 1024, "kind": "hellinger", "bias": False},
        (0.05, 0.1, 0.2),
    ),
}


def models(options: dict[str, Any], X: Any, y: Any) -> Iterator[tuple[str, FedRANClassifier]]:
    """The ways in which a model gets its calibration."""
    yield "fit", FedRANClassifier(**options).fit(X, y)
    batches = FedRANClassifier(**options)
    for i in range(0, len(X), len(X) // 10):
        batches.partial_fit(X[i : i + len(X) // 10], y[i : i + len(X) // 10])
    yield "partial_fit, 10 batches", batches
    drawn = np.random.default_rng(0).dirichlet([1.0] * SITES, y.max() + 1).cumsum(axis=1)
    turns = np.random.default_rng(1).random(len(y))
    for name, sites in (
        ("same classes", np.arange(len(y)) % SITES),
        ("classes in unequal shares", np.sum(turns[:, None] > drawn[y, :-1], axis=1)),
        ("no common class", y * SITES // (y.max() + 1)),
    ):
        parts = [(X[sites == k], y[sites == k]) for k in range(SITES)]
        total = sum(FedRANClassifier(**options).fit(*part) for part in parts)
        yield f"sum of {SITES} sites, {name}", total
        if name != "same classes":
            for part in parts:
                total.calibrate(*part)
            yield f"sum of {SITES} sites, {name}, `calibrate` at each", total


def calibration_error(P: NDArray[Any], right: NDArray[Any], bins: int = 15) -> float:
    confidence = P.max(axis=1)
    of = np.minimum((confidence * bins).astype(int), bins - 1)
    return sum(abs(np.sum(confidence[of == b] - right[of == b])) for b in range(bins)) / len(P)


def probabilities(clf: FedRANClassifier, X: Any, y: Any) -> list[float]:
    """Log loss, that of the best temperature on the test rows themselves, calibration error."""
    P, S = clf.predict_proba(X), clf.decision_function(X)
    codes = np.searchsorted(clf.classes_, y)
    best = min(
        -np.mean(log_softmax(S / T, axis=1)[np.arange(len(y)), codes])
        for T in np.geomspace(0.01, 1.0, 60)
    )
    return [log_loss(y, P), best, calibration_error(P, clf.classes_[P.argmax(axis=1)] == y)]


def of_sets(sets: NDArray[Any], codes: NDArray[Any]) -> list[float]:
    """Percent of rows whose set has the true label, set size, percent decided, percent wrong."""
    rows, decided = np.arange(len(codes)), sets.sum(axis=1) == 1
    wrong = decided & (sets.argmax(axis=1) != codes)
    share = [sets[rows, codes].mean(), decided.mean(), wrong.mean()]
    return [100 * share[0], sets.sum(axis=1).mean(), 100 * share[1], 100 * share[2]]


def mapie_sets(
    options: dict[str, Any], X: Any, y: Any, Z: Any, alphas: tuple[float, ...], seed: int
) -> Iterator[tuple[str, NDArray[Any]]]:
    """(n, C, alphas) sets of MAPIE's methods."""
    fit, held, y_fit, y_held = train_test_split(X, y, test_size=0.2, random_state=seed, stratify=y)
    clf = FedRANClassifier(**options).fit(fit, y_fit)
    for method in ("lac", "aps"):
        conformal = SplitConformalClassifier(
            clf, [1 - a for a in alphas], conformity_score=method, random_state=seed
        )
        conformal.conformalize(held, y_held)
        yield f"MAPIE, {method}", conformal.predict_set(Z)[1]


def novelty(seed: int) -> list[float]:
    """AUROC of novelty and of the best score: two digits never learned, and noise."""
    X, y, Z, z = digits(seed)
    clf = FedRANClassifier(out_features=1024).fit(X[y < 8], y[y < 8])
    noise = np.random.default_rng(seed).standard_normal((500, X.shape[1]))
    found = []
    for rows in (Z[z >= 8], noise):
        both = np.concatenate([Z[z < 8], rows])
        truth = np.repeat([0, 1], [np.sum(z < 8), len(rows)])
        best = clf.decision_function(both).max(axis=1)
        found += [roc_auc_score(truth, clf.novelty(both)), roc_auc_score(truth, -best)]
    return found


def table(head: list[str], rows: dict[Any, list[list[float]]], digits: list[int]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for key, values in rows.items():
        names = key if isinstance(key, tuple) else (key,)
        cells = ["refused"] * len(digits)
        if values:
            cells = [f"{v:.{d}f}" for v, d in zip(np.mean(values, axis=0), digits, strict=True)]
        lines.append("| " + " | ".join([*map(str, names), *cells]) + " |")
    return [*lines, ""]


def main() -> None:
    text = [
        "# Calibration of probabilities, sets and novelty",
        "",
        f"`python benchmarks/calibration.py`, {datetime.date.today()}, MAPIE {mapie.__version__}. "
        f"Means over {len(SEEDS)} splits, test rows only. *best log loss* is that of the "
        "temperature with the least log loss on the test rows themselves. *wrong* is the share of "
        "all rows that is decided and wrong, which should be at most alpha. *refused*: the rows "
        "that calibrate were compared with too few of the classes. MAPIE's sets may be empty, "
        "which counts as not decided. Unequal shares are drawn per class from Dirichlet(1).",
        "",
    ]
    for name, (load, options, alphas) in SETS.items():
        quality: dict[Any, list[list[float]]] = {}
        sets: dict[Any, list[list[float]]] = {}
        try:
            splits = [load(seed) for seed in SEEDS]
        except FileNotFoundError as reason:
            print(f"{name} is left out: {reason}")
            continue
        for seed, (X, y, Z, z) in enumerate(splits):
            for how, clf in models(options, X, y):
                codes = np.searchsorted(clf.classes_, z)
                quality.setdefault(how, []).append(
                    [100 * clf.score(Z, z), *probabilities(clf, Z, z)]
                )
                H = clf.phi_(Z)
                for alpha in alphas:
                    found = sets.setdefault((alpha, f"ours, {how}"), [])
                    if clf.head_.calibration.missing(len(clf.classes_)) < alpha:
                        found.append(of_sets(clf.head_.prediction_sets(H, alpha), codes))
            for how, stack in mapie_sets(options, X, y, Z, alphas, seed):
                for k, alpha in enumerate(alphas):
                    sets.setdefault((alpha, how), []).append(of_sets(stack[:, :, k], codes))
            print(name, seed, flush=True)
        heads = ["calibrated by", "accuracy", "log loss", "best log loss", "calibration error"]
        text += [f"## {name}, M = {options['out_features']:,}", ""]
        text += table(heads, quality, [1, 3, 3, 3])
        heads = ["alpha", "sets", "coverage, %", "mean size", "decided, %", "wrong, %"]
        ordered = dict(sorted(sets.items(), key=lambda item: item[0][0]))
        text += table(heads, ordered, [1, 2, 1, 2])
    heads = ["", "digits 8 and 9: novelty", "best score", "noise: novelty", "best score"]
    text += [
        "## Novelty",
        "",
        "AUROC against test rows of the learned digits 0 to 7. Novelty from 64 directions, "
        f"{2 * 64 * 1024:,} bytes at M = 1,024.",
        "",
        *table(heads, {"digits": [novelty(seed) for seed in SEEDS]}, [3, 3, 3, 3]),
    ]
    (RESULTS / "calibration.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
