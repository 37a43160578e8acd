"""The estimator on small tabular data, beside classifiers of scikit-learn.

    python benchmarks/tabular.py [--draws]

Sets that scikit-learn ships or generates. Columns are standardised with the training rows. The
kind of the random features and the rule for the ridge are chosen by cross-validation on the
training rows, and so are messages compared; the test rows are used once, for the first table and
for the one of rare classes. About ten minutes on two cores. Writes results/tabular.md.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_iris,
    load_wine,
    make_circles,
    make_classification,
    make_gaussian_quantiles,
    make_moons,
)
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_score, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import fedran
from fedran import FedRANClassifier
from fedran.core.solve.calibration import leave_one_out

RESULTS = Path(__file__).resolve().parent.parent / "results"
SEEDS = range(5)
N_ROWS = 2000
"""Rows of a generated set; half of them are for testing."""
M = 2048
SMALL = 512
"""Random features with which kinds are compared."""

Rows = tuple[NDArray[Any], NDArray[Any]]
Make = Callable[[int], Any]


def radius(seed: int) -> Rows:
    """Ten normal columns; the class says whether a row is longer than the median."""
    X = np.random.default_rng(seed).standard_normal((N_ROWS, 10))
    length = np.linalg.norm(X, axis=1)
    return X, (length > np.median(length)).astype(int)


def flipped(seed: int) -> Rows:
    """Two classes, and the wrong one in 30 % of the rows: no model is right in more than 70 %."""
    X, y = make_classification(N_ROWS, 20, n_informative=6, random_state=seed)
    wrong = np.random.default_rng(seed).random(N_ROWS) < 0.3
    return X, np.where(wrong, 1 - y, y)


def risk(seed: int) -> Rows:
    """15 columns that say a little about a rare or frequent event each: a weak risk score."""
    rng = np.random.default_rng(seed)
    X, w = rng.standard_normal((N_ROWS, 15)), rng.standard_normal(15)
    odds = np.exp(0.8 * X @ w / np.linalg.norm(w))
    return X, (rng.random(N_ROWS) < odds / (1 + odds)).astype(int)


def texts(seed: int) -> Rows:
    """TF-IDF of 40 words each, of which 15 % follow one of five topics and 85 % none."""
    rng = np.random.default_rng(seed)
    common = 1 / np.arange(1, 1001)
    common /= common.sum()
    own = [rng.permutation(common) for _ in range(5)]
    y = rng.integers(0, 5, N_ROWS)
    words = [rng.multinomial(rng.poisson(40) + 1, 0.85 * common + 0.15 * own[c]) for c in y]
    return TfidfTransformer(sublinear_tf=True).fit_transform(np.stack(words)).toarray(), y


def rare(seed: int, n: int = 40_000) -> Rows:
    """One row in 1000 is of class 1; three of its ten columns have mean 1 instead of 0."""
    rng = np.random.default_rng(seed)
    y = (np.arange(n) % 1000 == 0).astype(int)
    return rng.standard_normal((n, 10)) + y[:, None] * (np.arange(10) < 3), y


SETS: dict[str, Callable[[int], Rows]] = {
    "iris": lambda _: load_iris(return_X_y=True),
    "wine": lambda _: load_wine(return_X_y=True),
    "breast_cancer": lambda _: load_breast_cancer(return_X_y=True),
    "digits": lambda _: load_digits(return_X_y=True),
    "circles": lambda seed: make_circles(N_ROWS, noise=0.05, factor=0.5, random_state=seed),
    "moons": lambda seed: make_moons(N_ROWS, noise=0.2, random_state=seed),
    "classification": lambda seed: make_classification(
        N_ROWS, 20, n_informative=6, n_classes=3, random_state=seed
    ),
    "gaussian_quantiles": lambda seed: make_gaussian_quantiles(
        n_samples=N_ROWS, n_features=5, n_classes=3, random_state=seed
    ),
    "radius, d = 10": radius,
    "flipped labels, 30 %": flipped,
    "weak risk score": risk,
    "TF-IDF": texts,
}

CANDIDATES: dict[str, Make] = {
    "cosine": lambda seed: standardised(FedRANClassifier(SMALL, random_state=seed)),
    "relu": lambda seed: standardised(FedRANClassifier(SMALL, "relu", random_state=seed)),
    "hellinger, columns in 0..1": lambda seed: make_pipeline(
        MinMaxScaler(clip=True), FedRANClassifier(SMALL, "hellinger", random_state=seed)
    ),
    "cosine, no bias": lambda seed: standardised(
        FedRANClassifier(SMALL, bias=False, random_state=seed)
    ),
    "relu, no bias": lambda seed: standardised(
        FedRANClassifier(SMALL, "relu", bias=False, random_state=seed)
    ),
}
"""From which the default of FedRANClassifier is chosen."""

MESSAGES: dict[str, tuple[int, int | None]] = {
    "r = 8, M = 256": (256, 8),
    "r = 16, M = 256": (256, 16),
    "r = 32, M = 256": (256, 32),
    "r = 32, M = 1024": (1024, 32),
    "all columns, M = 1024": (1024, 1024),
    "points, every row": (1, None),
    "points, at least 5": (5, None),
}
"""M and rank of summaries; of points, which have no rank, the mean and least rows of a group."""
SITES = 3


class KernelHead(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A kernel head on every row, or on landmarks, beside the estimator's random features."""

    def __init__(self, equal_bytes: bool = False) -> None:
        self.equal_bytes = equal_bytes

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> KernelHead:
        """With ``equal_bytes``, support and weights are as many numbers as M weights per class."""
        self.phi_ = fedran.KernelFeatures(X.shape[1], bias=True)
        server = fedran.Aggregator(fingerprint=self.phi_.fingerprint)
        points = fedran.condense(self.phi_(X), y, 1, 1, self.phi_.fingerprint)
        server.absorb(points, client="a", task="all")
        self.classes_ = np.unique(y)
        most = M * len(self.classes_) // (X.shape[1] + 1 + len(self.classes_))
        self.head_ = server.solve(
            landmarks=max(most, len(self.classes_), 1) if self.equal_bytes else None
        )
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """The best label of each row."""
        return self.head_.predict(self.phi_(X))


COMPARED: dict[str, Make] = {
    "FedRANClassifier": lambda seed: standardised(FedRANClassifier(M, random_state=seed)),
    "ridge=1.0": lambda seed: standardised(FedRANClassifier(M, ridge=1.0, random_state=seed)),
    "kernel head, equal bytes": lambda _: standardised(KernelHead(equal_bytes=True)),
    "kernel head, every row": lambda _: standardised(KernelHead()),
    "not scaled": lambda seed: FedRANClassifier(M, random_state=seed),
    "RBFSampler + Ridge": lambda seed: standardised(
        RBFSampler(gamma="scale", n_components=M, random_state=seed), RidgeClassifier()
    ),
    "Ridge": lambda _: standardised(RidgeClassifier()),
    "LogisticRegression": lambda _: standardised(LogisticRegression(max_iter=1000)),
    "HistGradientBoosting": lambda seed: HistGradientBoostingClassifier(random_state=seed),
    "KNN": lambda _: standardised(KNeighborsClassifier()),
}


def standardised(*steps: Any) -> Any:
    """A pipeline that scales the columns first."""
    return make_pipeline(StandardScaler(), *steps)


def split(X: NDArray[Any], y: NDArray[Any], seed: int) -> list[NDArray[Any]]:
    """Training rows, test rows, and the labels of both."""
    return train_test_split(X, y, test_size=0.5, stratify=y, random_state=seed)


def on_training_rows(make: Make, rows: Callable[[int], Rows], seed: int) -> float:
    """Accuracy by cross-validation with five folds of the training rows."""
    X, _, y, _ = split(*rows(seed), seed)
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    return float(np.mean(cross_val_score(make(seed), X, y, cv=folds)))


def on_test_rows(make: Make, rows: Callable[[int], Rows], seed: int) -> float:
    """Accuracy on the test rows of a model of the training rows."""
    X, X_test, y, y_test = split(*rows(seed), seed)
    return float(make(seed).fit(X, y).score(X_test, y_test))


def by_ridge(rows: Callable[[int], Rows], seed: int) -> list[NDArray[np.float64]]:
    """For each fold of the training rows: accuracy with the ridge that each rule chooses.

    The rules: none (1.0), the evidence, and three kinds of leave-one-out: the middle one of the
    ridges whose accuracy is within a standard error of the best, as for kernel heads; the least
    squared error; the least generalised cross-validation.
    """
    X, _, y, _ = split(*rows(seed), seed)
    found = []
    for learned, held in StratifiedKFold(5, shuffle=True, random_state=seed).split(X, y):
        Z = StandardScaler().fit(X[learned]).transform(X)
        phi = fedran.RandomFeatures(X.shape[1], M, seed=seed, bias=True)
        H, H_held = (phi(Z[part]).astype(float) for part in (learned, held))
        Y = np.eye(int(y.max()) + 1)[y[learned]]
        s, U = np.linalg.eigh(H @ H.T)
        s, UY, rotated, n = np.maximum(s, 0), U.T @ Y, H_held @ H.T @ U, len(Y)
        right, left_out, errors, gcv, evidence = [], [], [], [], []
        for lam in 0.03 * np.mean(np.sum(H**2, axis=1)) * np.array(fedran.Ridge.SEARCHED):
            d = 1 / (s + lam)
            alpha = U @ (d[:, None] * UY)
            scores = Y - alpha / (U**2 @ d)[:, None]
            right.append(np.mean((rotated @ (d[:, None] * UY)).argmax(axis=1) == y[held]))
            left_out.append(scores.argmax(axis=1) == y[learned])
            errors.append(np.mean((scores - Y) ** 2))
            gcv.append(np.mean(alpha**2) / np.mean(d) ** 2)
            squares = np.sum(UY**2 * d[:, None], axis=0)
            kept = squares[squares > 0]
            evidence.append(-n * np.sum(np.log(kept)) + len(kept) * np.sum(np.log(d)))
        lost = np.array(left_out)[np.argmax(np.mean(left_out, axis=1))] - np.array(left_out, float)
        mean = lost.mean(axis=1, keepdims=True)
        equal = np.flatnonzero(mean[:, 0] <= np.sqrt(np.sum((lost - mean) ** 2, axis=1)) / n)
        chosen = [
            fedran.Ridge.SEARCHED.index(1.0),
            int(np.argmax(evidence)),
            int(equal[(len(equal) - 1) // 2]),
            int(np.argmin(errors)),
            int(np.argmin(gcv)),
        ]
        found.append(100 * np.array(right)[chosen])
    return found


RULES = ("ridge=1.0", "evidence", "leave-one-out accuracy", "squared error", "GCV")


def ridge_table(seeds: range) -> list[str]:
    """Lines of a table: accuracy by the rule that chooses the ridge."""
    lines = [f"| set | {' | '.join(RULES)} |", "|---" * (len(RULES) + 1) + "|"]
    means = []
    for name, rows in SETS.items():
        means.append(np.mean([by_ridge(rows, seed) for seed in seeds], axis=(0, 1)))
        lines.append(f"| {name} | {' | '.join(f'{v:.1f}' for v in means[-1])} |")
    return [*lines, f"| **mean** | {' | '.join(f'{v:.1f}' for v in np.mean(means, axis=0))} |"]


def draws(name: str, seeds: range = range(5, 25)) -> str:
    """On new draws of a set, the gain of the evidence over ridge=1.0 on the test rows.

    And of the better of the two by leave-one-out accuracy on the rows learned from.
    """
    gains = []
    for seed in seeds:
        X, X_test, y, y_test = split(*SETS[name](seed), seed)
        scale = StandardScaler().fit(X)
        right, left_out = [], []
        for options in ({}, {"ridge": 1.0}):
            model = FedRANClassifier(M, random_state=seed, **options).fit(scale.transform(X), y)
            right.append(100 * model.score(scale.transform(X_test), y_test))
            H = model.phi_(scale.transform(X)).astype(float)
            head, leverages = model._learned.solve_with_leverages(H, model._ridge())
            codes = np.searchsorted(model.classes_, y)
            scores = leave_one_out(head.scores(H), codes, leverages)
            left_out.append(np.mean(scores.argmax(axis=1) == codes))
        better = right[0] if left_out[0] >= left_out[1] else right[1]
        gains.append((right[0] - right[1], better - right[1]))
    error = np.std(gains, axis=0, ddof=1) / np.sqrt(len(gains))
    shown = [f"{m:+.2f} ± {e:.2f}" for m, e in zip(np.mean(gains, axis=0), error, strict=True)]
    return f"{name}: evidence {shown[0]}, better by leave-one-out {shown[1]} points"


def rare_table(seeds: range) -> list[str]:
    """Lines of a table: how many rows of each of two classes get their label, at 1 : 1000."""
    models: dict[str, Make] = {
        "FedRANClassifier": lambda seed: FedRANClassifier(M, random_state=seed),
        'class_weight="balanced"': lambda seed: FedRANClassifier(
            M, random_state=seed, class_weight="balanced"
        ),
        "LogisticRegression, balanced": lambda _: LogisticRegression(class_weight="balanced"),
    }
    lines = ["| model | rare class | other class |", "|---|---|---|"]
    for name, make in models.items():
        found = []
        for seed in seeds:
            X, X_test, y, y_test = split(*rare(seed), seed)
            right = make(seed).fit(X, y).predict(X_test) == y_test
            found.append([100 * np.mean(right[y_test == c]) for c in (1, 0)])
        mean, spread = np.mean(found, axis=0), np.std(found, axis=0)
        cells = [f"{m:.1f} ± {d:.1f}" for m, d in zip(mean, spread, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def of_sites(
    size: int, rank: int | None, rows: Callable[[int], Rows], seed: int
) -> list[tuple[float, int, int]]:
    """For each fold of the training rows: accuracy, largest upload, and bytes of a site's rows."""
    X, _, y, _ = split(*rows(seed), seed)
    phi: Any = fedran.KernelFeatures(X.shape[1], bias=True)
    if rank is not None:
        phi = fedran.RandomFeatures(X.shape[1], size, seed=seed, bias=True)
    found = []
    for learned, held in StratifiedKFold(5, shuffle=True, random_state=seed).split(X, y):
        Z = StandardScaler().fit(X[learned]).transform(X)
        server, uploads = fedran.Aggregator(fingerprint=phi.fingerprint), []
        for k, part in enumerate(np.array_split(learned, SITES)):
            H = phi(Z[part])
            if rank is None:
                message: Any = fedran.condense(H, y[part], size, size, phi.fingerprint)
            else:
                message = fedran.summarize(H, y[part], rank, fingerprint=phi.fingerprint)
            uploads.append(fedran.encode(message))
            server.absorb(fedran.decode(uploads[-1]), client=f"site-{k}", task="all")  # type: ignore[arg-type]
        right = server.solve().predict(phi(Z[held])) == y[held]
        whole = 4 * X.shape[1] * len(learned) // SITES
        found.append((100 * float(np.mean(right)), max(map(len, uploads)), whole))
    return found


def messages_table(seeds: range) -> list[str]:
    """Lines of a table: accuracy and KiB of each message, and the KiB of a site's rows."""
    lines = [f"| set | rows, KiB | {' | '.join(MESSAGES)} |", "|---" * (len(MESSAGES) + 2) + "|"]
    total = []
    for name, rows in SETS.items():
        found = np.array(
            [
                np.mean([of_sites(*chosen, rows, seed) for seed in seeds], axis=(0, 1))
                for chosen in MESSAGES.values()
            ]
        )
        total.append(found[:, :2])
        cells = [f"{accuracy:.1f} ({size / 1024:.1f})" for accuracy, size, _ in found]
        lines.append(f"| {name} | {found[0, 2] / 1024:.1f} | {' | '.join(cells)} |")
    means = [f"{accuracy:.1f} ({size / 1024:.1f})" for accuracy, size in np.mean(total, axis=0)]
    return [*lines, f"| **mean** | | {' | '.join(means)} |"]


def table(
    models: Mapping[str, Make], measure: Callable[..., float], seeds: range
) -> dict[str, dict[str, NDArray[Any]]]:
    """Accuracies in percent over the seeds, by set and model."""
    return {
        name: {
            model: 100 * np.array([measure(make, rows, seed) for seed in seeds])
            for model, make in models.items()
        }
        for name, rows in SETS.items()
    }


def markdown(found: dict[str, dict[str, NDArray[Any]]]) -> list[str]:
    """Lines of a table: mean and standard deviation over the seeds, and means over the sets."""
    models = list(next(iter(found.values())))
    lines = [f"| set | {' | '.join(models)} |", "|---" * (len(models) + 1) + "|"]
    for name, row in found.items():
        cells = [f"{row[m].mean():.1f} ± {row[m].std():.1f}" for m in models]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    means = [np.mean([row[m].mean() for row in found.values()]) for m in models]
    return [*lines, f"| **mean** | {' | '.join(f'{v:.1f}' for v in means)} |"]


def main() -> None:
    """Measure, and write the page; with --draws only print what more draws of two sets say."""
    if "--draws" in sys.argv:
        print("\n".join(map(draws, ("classification", "gaussian_quantiles"))))
        return
    choice = table(CANDIDATES, on_training_rows, range(2))
    test = table(COMPARED, on_test_rows, SEEDS)
    text = [
        "# The estimator on tabular data",
        "",
        f"`python benchmarks/tabular.py`, {datetime.date.today()}. Accuracy in percent, mean and "
        f"standard deviation over {len(SEEDS)} seeds (split, generated rows, random features). "
        f"Half of the rows are for testing; generated sets have {N_ROWS:,} rows. M = {M:,} random "
        "features, also for RBFSampler. *kernel head*: kernel ridge with every row as support, and "
        "with so many landmarks that support and weights are as many numbers as the M weights per "
        "class. Columns are standardised with the training rows, except for HistGradientBoosting, "
        "which does not depend on their scale, and for the column *not scaled*. All other settings "
        "are defaults.",
        "",
        *markdown(test),
        "",
        "## The default kind",
        "",
        "Chosen on training rows alone: accuracy by cross-validation with five folds of the "
        f"training rows, two seeds, {SMALL} random features. Without a constant (`bias=False`) the "
        "model does not see the length of a row.",
        "",
        *markdown(choice),
        "",
        "## The default ridge",
        "",
        "Accuracy by cross-validation as above, two seeds, with the multiple of the default rule "
        'among `Ridge.SEARCHED` that each rule chooses from the other folds. `ridge="cv"` is '
        "the evidence: it needs sums only, so that the sum of two models has the ridge of the "
        "pooled fit. *leave-one-out accuracy* is the rule of kernel heads.",
        "",
        *ridge_table(range(2)),
        "",
        "## Rare classes",
        "",
        f"One row in 1,000 is of the rare class, 20 of the 20,000 rows to learn from. Percent of "
        f"the test rows of each class with the right label, {len(SEEDS)} seeds.",
        "",
        *rare_table(SEEDS),
        "",
        f"## Messages of {SITES} sites",
        "",
        f"The training rows are divided evenly among {SITES} sites, which send one message each: a "
        "summary of rank r, or points (every row, or groups of at least 5). Accuracy by "
        "cross-validation as above, one seed, and in brackets the KiB of the largest upload. "
        "*rows, KiB*: the rows of one site in float32.",
        "",
        *messages_table(range(1)),
        "",
    ]
    (RESULTS / "tabular.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
