"""How rows are best drawn from a mixture, on held-out training rows of CIFAR-100.

    FEDRAN_DATA=... python benchmarks/mixture_draws.py

Prints the table of docs/explanation/mathematics.md: six disjoint sets of 16 classes, each at five
sites, and the accuracy on held-out training rows at the best of five ridges. Test rows are never
read. The package itself draws as ``mean removed, 2``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg
from scipy.special import ndtr

import fedran
from fedran.core.mixture import MixturePart
from fedran.core.solve.ridge import solve_gram
from fedran.data.catalogue import load_dataset
from fedran_bench.streams import make_stream

OUT_FEATURES, GROUP_SIZE, RHOS = 2048, 5, (0.005, 0.01, 0.02, 0.05, 0.1)
Draw = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Random features, their weights, and the weights with which they count in the class sums."""


def drawn(
    part: MixturePart, rng: np.random.RandomState, phi: fedran.RandomFeatures, how: str, k: int
) -> tuple[Draw, np.ndarray]:
    """Random features of k rows per real row, drawn in the given way, and their classes."""
    n = np.where(part.spreads == 0, 1, k * part.counts)
    if how == "antithetic pairs":
        n = np.where(n > 1, 2 * np.maximum(1, n // 2), n)
    owner = np.repeat(np.arange(len(n)), n)
    starts = np.cumsum(n) - n
    normal = rng.standard_normal((len(owner), part.means.shape[1])).astype(np.float32)
    if how == "antithetic pairs":
        second = np.arange(len(owner)) - starts[owner] >= np.maximum(1, n[owner] // 2)
        later = np.flatnonzero(second)
        normal[later] = -normal[later - n[owner[later]] // 2]
    elif how != "independent":
        several = n[owner] > 1
        mean = np.add.reduceat(normal, starts, axis=0) / n[:, None]
        grown = np.sqrt(n / np.maximum(n - 1, 1))[owner, None]
        normal[several] = ((normal - mean[owner]) * grown)[several]
    weights = (part.counts / n)[owner]
    if how == "covariance matched":
        shown = np.sqrt(weights * part.spreads[owner])
        inside = (normal * (shown / np.linalg.norm(shown))[:, None])[shown > 0]
        if len(inside) > 1.3 * normal.shape[1]:
            lower = np.linalg.cholesky((inside.T @ inside).astype(np.float64))
            normal = scipy.linalg.solve_triangular(lower, normal.T, lower=True).T
    along = np.sqrt(part.shares) - np.sqrt(part.tail)
    residual = np.sqrt(part.tail) * normal + (normal @ part.directions.T * along) @ part.directions
    X = part.means[owner] + np.sqrt(part.spreads)[owner, None] * residual
    if how == "no negative entry, norm 1":
        X = np.maximum(X, 0)
    if how.endswith("norm 1"):
        X /= np.linalg.norm(X, axis=1, keepdims=True)
    return (phi.project(X.astype(np.float32)), weights, weights), part.codes[owner]


def linearised(
    part: MixturePart, rng: np.random.RandomState, phi: fedran.RandomFeatures, k: float
) -> tuple[Draw, np.ndarray]:
    """The exact mean of GELU per group, and residuals through its mean derivative."""
    P = phi.projection.astype(np.float64)
    m = part.means @ P
    squares = (part.directions @ P) ** 2
    v = np.outer(part.spreads, (part.shares - part.tail) @ squares + part.tail * (P**2).sum(axis=0))
    z = m / np.sqrt(1 + v)
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    mean = m * ndtr(z) + v / np.sqrt(1 + v) * density
    slope = ndtr(z) + density * m / (1 + v) ** 1.5
    n = np.maximum(1, np.rint(k * part.counts)).astype(int)
    owner = np.repeat(np.arange(len(n)), n)
    normal = rng.standard_normal((len(owner), part.means.shape[1]))
    along = np.sqrt(part.shares) - np.sqrt(part.tail)
    residual = np.sqrt(part.tail) * normal + (normal @ part.directions.T * along) @ part.directions
    H = (np.sqrt(part.spreads)[owner, None] * residual) @ P * slope[owner]
    rows = np.concatenate([mean, H]).astype(np.float32)
    weights = np.concatenate([part.counts, (part.counts / n)[owner]])
    in_sums = np.concatenate([part.counts, np.zeros(len(owner))])
    return (rows, weights, in_sums), np.concatenate([part.codes, part.codes[owner]])


def accuracy(
    parts: list[MixturePart],
    make: Callable[[MixturePart], tuple[Draw, np.ndarray]],
    held_out: tuple[np.ndarray, np.ndarray],
) -> tuple[list[float], int]:
    """Accuracy per ridge of the head over all parts, and the number of drawn rows."""
    G = np.zeros((OUT_FEATURES,) * 2, dtype=np.float32, order="F")
    classes = sorted({c for part in parts for c in part.classes})
    B, energy, drawn_rows = np.zeros((OUT_FEATURES, len(classes))), 0.0, 0
    for part in parts:
        (H, weights, in_sums), codes = make(part)
        scaled = H * np.sqrt(weights)[:, None].astype(np.float32)
        G += scaled.T @ scaled
        energy += float(np.sum(scaled.astype(np.float64) ** 2))
        drawn_rows += len(H)
        for code, label in enumerate(part.classes):
            own = codes == code
            B[:, classes.index(label)] += in_sums[own] @ H[own]
    H, y = held_out
    mean = energy / sum(int(part.counts.sum()) for part in parts)
    solved = (solve_gram(G.copy(order="F"), B, rho * mean).weights for rho in RHOS)
    found = [np.array(classes)[np.argmax(H @ W, axis=1)] for W in solved]
    return [100 * float(np.mean(f == y)) for f in found], drawn_rows


def main() -> None:
    """Print the table."""
    data = load_dataset("cifar100-efficientnet_lite0")
    phi = fedran.RandomFeatures(data.X_train.shape[1], OUT_FEATURES, kind="hellinger")
    rng = np.random.RandomState(5)
    out = np.concatenate(
        [rng.permutation(np.flatnonzero(data.y_train == c))[:100] for c in np.unique(data.y_train)]
    )
    kept = np.setdiff1d(np.arange(len(data.y_train)), out)
    sets = []
    for group in np.array_split(np.unique(data.y_train)[:96], 6):
        rows = kept[np.isin(data.y_train[kept], group)]
        shown = out[np.isin(data.y_train[out], group)]
        X, y = data.X_train[rows].astype(np.float32), data.y_train[rows]
        task = make_stream(y, n_tasks=1, n_clients=5, beta=0.1, seed=1993).tasks[0]
        messages = [fedran.condense(X[r], y[r], phi, GROUP_SIZE, 1) for r in task.rows if len(r)]
        test = phi(data.X_train[shown].astype(np.float32)), data.y_train[shown]
        sets.append(([part for m in messages for part in m.parts], test))
    variants = [("independent", 1), ("independent", 3), ("independent", 6)]
    variants += [("mean removed", 1), ("mean removed", 2), ("antithetic pairs", 2)]
    variants += [("covariance matched", 2), ("norm 1", 2), ("no negative entry, norm 1", 2)]
    variants += [("linearised", 1), ("linearised", 1 / 3)]
    print("| draws | per real row | rows | " + " | ".join(f"rho {r:g}" for r in RHOS) + " |")
    for how, k in variants:
        generator, scores, total = np.random.RandomState(1), [], 0
        for parts, test in sets:

            def make(part, how=how, k=k, generator=generator):
                if how == "linearised":
                    return linearised(part, generator, phi, k)
                return drawn(part, generator, phi, how, k)

            found, rows = accuracy(parts, make, test)
            scores.append(found)
            total += rows
        means = " | ".join(f"{a:.2f}" for a in np.mean(scores, axis=0))
        print(f"| {how} | {k:.2g} | {total} | {means} |", flush=True)


if __name__ == "__main__":
    main()
