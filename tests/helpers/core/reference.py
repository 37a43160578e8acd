"""The slow, obvious mathematics that the tests compare with: dense float64 NumPy only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

quick = settings(deadline=None, max_examples=30)

ROUNDING = 1e-9
"""Room for float64 rounding, relative to the norm of what is compared."""


def features(rng, n, M, decay=0.0):
    """(n, M) nonnegative rows whose spectrum falls like exp(-decay i)."""
    weights = np.exp(-decay * np.arange(M))
    return np.maximum(rng.standard_normal((n, M)) * weights, 0.0) + 0.2 * weights * rng.random(M)


def onehot(y, classes):
    return np.array([[float(v == c) for c in classes] for v in y]).reshape(len(y), len(classes))


def ridge(H, y, classes, lam):
    """W* = (H'H + lam I)^-1 H'Y."""
    G = H.T @ H
    return np.linalg.solve(G + lam * np.eye(len(G)), H.T @ onehot(y, classes))


def best_rank(S, r):
    """T_r(S) of a symmetric PSD matrix, and its eigenvalues in descending order."""
    values, vectors = np.linalg.eigh(S)
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    return (vectors[:, :r] * values[:r]) @ vectors[:, :r].T, values


def spectral(R):
    return float(np.linalg.norm(R, 2)) if R.size else 0.0


def frobenius(R):
    return float(np.linalg.norm(R))


@dataclass
class PaperServer:
    """Algorithm 1 of the paper, literally, on Gram matrices: spatial merges, then temporal."""

    M: int
    rank: int
    eps_G: float = 0.0
    G: np.ndarray = field(init=False)
    B: np.ndarray | None = None

    def __post_init__(self):
        self.G = np.zeros((self.M, self.M))

    def client_svd(self, H, r):
        sketch, values = best_rank(H.T @ H, r)
        self.eps_G += values[r] if r < len(values) else 0.0
        return sketch

    def merge(self, a, b):
        merged, values = best_rank(a + b, self.rank)
        self.eps_G += values[self.rank] if self.rank < len(values) else 0.0
        return merged

    def task(self, Hs, r):
        sketch = np.zeros_like(self.G)
        for H in Hs:
            sketch = self.merge(sketch, self.client_svd(H, r))
        self.G = self.merge(self.G, sketch)


@dataclass(frozen=True)
class Federation:
    """Rows and labels of every client of every task: parts[t][k] = (H, y)."""

    M: int
    parts: list

    @property
    def uploads(self):
        return [
            (f"c{k}", f"t{t}", H, y)
            for t, task in enumerate(self.parts)
            for k, (H, y) in enumerate(task)
        ]

    @property
    def H(self):
        return np.concatenate([H for _, _, H, _ in self.uploads])

    @property
    def y(self):
        return [label for *_, y in self.uploads for label in y]

    @property
    def gram(self):
        return self.H.T @ self.H


@st.composite
def federations(draw, max_tasks=3, max_clients=3, max_rows=16, min_rows=1):
    """A small federation with any spread of rows; classes are a mix of ints and strs."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    M = draw(st.integers(2, 20))
    decay = draw(st.sampled_from([0.0, 0.1, 0.5]))
    names = [0, 1, "a", "b", "zebra"][: draw(st.integers(2, 5))]
    parts = []
    for _ in range(draw(st.integers(1, max_tasks))):
        task = []
        for _ in range(draw(st.integers(1, max_clients))):
            n = draw(st.integers(min_rows, max_rows))
            y = [names[i] for i in rng.integers(len(names), size=n)]
            task.append((features(rng, n, M, decay), y))
        parts.append(task)
    return Federation(M, parts)
