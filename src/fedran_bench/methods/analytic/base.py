"""What analytic methods share: one round per task, frozen features, feature maps, checks."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import (
    Array,
    as_matrix,
    cast,
    device,
    like,
    namespace,
    require_finite,
    to_device,
)
from fedran.core._linalg.blas import matmul
from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import Label, encode_labels
from fedran.core.prepare import Kind
from fedran.core.solve.head import Diagnosis, Head
from fedran.core.sums.accounts import Accounts
from fedran.settings import at_least, positive
from fedran.wire.codec import encode
from fedran_bench.methods.protocol import BaseMethod, ClientData

LARGEST_GRAM = 1e30
"""Larger entries of a Gram would overflow float32 once some clients are added."""
LARGEST_ROW = 1e12
"""Larger features would overflow float32 once they are mapped, squared and added."""
FLOAT32_ROUNDING = float(np.finfo(np.float32).eps)
"""Sums arrive in float32: differences below this share of them are rounding errors."""

# Types of settings that several methods have.
Width = Annotated[int, at_least(1)]
Positive = Annotated[float, positive]
OptionalPositive = Annotated[float | None, positive]
OptionalKind = Kind | None


class AnalyticMethod(BaseMethod):
    """One round per task, by statistics of frozen features from a known source.

    The server predicts with ``state.head``, the newest one, and broadcasts it.
    """

    family: Literal["analytic", "reference"] = "analytic"
    input: Literal["features"] = "features"
    source: Mapping[str, str] | None = None
    """Where the features come from, for the fingerprint of random features; None: not stated."""
    out_features: int
    kind: OptionalKind
    """Width and kind of random features, in methods that have them."""

    def random_features(self, in_features: int, seed: int) -> RandomFeatures:
        """The map of the method's kind; None, where no dataset declared one, is cosine."""
        kind = self.kind or "cosine"
        return RandomFeatures(in_features, self.out_features, kind, seed, source=self.source)

    def bound_to(self, source: Mapping[str, str]) -> Self:
        """The same method for features of this source. Uploads for others are then refused."""
        bound = copy.copy(self)
        object.__setattr__(bound, "source", source)
        return bound

    def broadcast(self, state: Any, task: int, round_: int) -> bytes:
        """The newest head, empty before the first task."""
        return b"" if state.head is None else encode(state.head)

    def predict(self, state: Any, X: NDArray[Any]) -> NDArray[Any]:
        """The labels that the head predicts."""
        if state.head is None:
            raise ValueError("nothing to predict with: no task was aggregated yet")
        return state.head.predict(state.phi(to_device(X, self.device)))


def labelled_rows(data: ClientData) -> tuple[NDArray[Any], tuple[Label, ...], NDArray[np.int64]]:
    """The labelled rows of a client, the classes, and the class number of each row."""
    X = as_matrix(data.X, "X")
    classes, codes = encode_labels(data.y, len(X))
    require_finite(X, "X")
    return X[codes >= 0], classes, codes[codes >= 0]


def only_labelled(data: ClientData) -> ClientData:
    """The labelled rows of a client: what other rows it has does not matter, to the last bit."""
    X, classes, codes = labelled_rows(data)
    return replace(data, X=X, y=[classes[c] for c in codes], images=None)


def require_range(values: Array, name: str, largest: float) -> None:
    """Refuse NaN, infinity and values that would overflow once they are squared or added."""
    peak = np.max(np.abs(values), initial=0.0)  # NaN if any value is NaN
    if not peak <= largest:
        raise Refused(name, f"finite values up to {largest:g}", peak)


def unit_columns(head: Head) -> Head:
    """The head with the weights of every class divided by their norm: h . w_c / |w_c|."""
    W: Array = head.weights
    xp = namespace(W)
    norms = xp.linalg.vector_norm(W, axis=0, keepdims=True)
    return replace(head, weights=W / xp.where(norms > 0, norms, xp.ones_like(norms)))


def unregularised_head(
    weights: Array,
    eigenvalues: NDArray[Any],
    accounts: Accounts,
    classes: tuple[Label, ...],
    route: str,
    fingerprint: Fingerprint | None = None,
) -> Head:
    """A head at lambda = 0 over the directions with these (positive) eigenvalues.

    Without a ridge no bound on the weights holds: the diagnosis shows the largest number.
    """
    return unbounded_head(
        weights,
        classes,
        f"{route}, no ridge and so no bound",
        accounts.n_rows,
        float(eigenvalues.sum() ** 2 / (eigenvalues @ eigenvalues)),
        f=accounts.cut_fraction,
        condition=float(eigenvalues.max()) / float(eigenvalues.min()),
        fingerprint=fingerprint,
    )


def trained_head(
    weights: Array, classes: tuple[Label, ...], route: str, n_rows: int, rank: int
) -> Head:
    """A head that the server trained in ``rank`` dimensions: nothing is solved, nothing bounded."""
    return unbounded_head(weights, classes, f"{route}, no bound", n_rows, rank)


def unbounded_head(
    weights: Array,
    classes: tuple[Label, ...],
    route: str,
    n_rows: int,
    effective_rank: float,
    *,
    lam: float = 0.0,
    f: float = 0.0,
    condition: float = 1.0,
    residual: float = 0.0,
    fingerprint: Fingerprint | None = None,
) -> Head:
    """A head without a bound on its weights."""
    condition = min(condition, sys.float_info.max)
    diagnosis = Diagnosis(route, lam, f, n_rows, float(effective_rank), condition, residual)
    return Head(cast(weights, "float32"), classes, diagnosis, fingerprint)


BLOCK_ROWS = 4096


class Raw:
    """Z unchanged."""

    fingerprint: Fingerprint | None = None

    def __init__(self, in_features: int, out_features: int | None = None) -> None:
        self.in_features, self.out_features = in_features, out_features or in_features

    def __call__(self, Z: Array) -> Array:
        """Z in float32."""
        return cast(as_matrix(Z, "Z", self.in_features), "float32")

    def blocks(self, Z: Array) -> Iterator[tuple[slice, Array]]:
        """Iterate over (rows, mapped rows) in blocks."""
        for i in range(0, len(Z), BLOCK_ROWS):
            rows = slice(i, min(i + BLOCK_ROWS, len(Z)))
            yield rows, self(Z[rows])


class WithBias(Raw):
    """Z and a column of ones, so that a linear classifier has an intercept."""

    def __init__(self, in_features: int) -> None:
        super().__init__(in_features, in_features + 1)

    def __call__(self, Z: Array) -> Array:
        """[Z, 1] in float32."""
        return with_ones(super().__call__(Z))


def with_ones(H: Array) -> Array:
    """[H, 1]."""
    xp = namespace(H)
    return xp.concat([H, xp.ones((H.shape[0], 1), dtype=H.dtype, device=device(H))], axis=1)


class Projection(Raw):
    """Z P without an activation, to measure what the nonlinearity adds."""

    def __init__(self, in_features: int, out_features: int, seed: int) -> None:
        super().__init__(in_features, out_features)
        self.random = RandomFeatures(in_features, out_features, kind="relu", seed=seed)

    def __call__(self, Z: Array) -> Array:
        """Z P in float32."""
        Z = super().__call__(Z)
        return matmul(Z, self.random.projection_like(Z))


FeatureMap = RandomFeatures | Raw
"""A map from features Z (n, d) to the inputs (n, M) of a linear classifier."""


BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
"""The usual constants of Adam."""


def softmax_regression(
    X: Array,
    codes: NDArray[np.int64],
    n_classes: int,
    *,
    epochs: int,
    batch: int,
    lr: float,
    weight_decay: float,
    seed: int,
) -> Array:
    """Weights (d, C) that minimise the mean cross-entropy of ``softmax(X W)`` against ``codes``.

    AdamW with a constant learning rate, started at zero: the problem is convex. The rows are
    permuted before every epoch. The same code runs in NumPy and on a torch device, with the same
    permutations. A column of ones in X gives an intercept, which decays like the other weights,
    as in ``torch.optim.AdamW``. 6 n d C operations per epoch.
    """
    xp = namespace(X)
    W = like(np.zeros((X.shape[1], n_classes), dtype=np.float32), X)
    mean, square = xp.zeros_like(W), xp.zeros_like(W)
    y, index = like(codes, X), like(np.arange(min(batch, len(codes))), X)
    random = np.random.RandomState(seed)
    step = 0
    for _ in range(epochs):
        order = like(random.permutation(len(codes)), X)
        for i in range(0, len(codes), batch):
            rows = order[i : i + batch]
            part = X[rows]
            error = part @ W
            error -= xp.max(error, axis=1, keepdims=True)
            error = xp.exp(error)
            error /= xp.sum(error, axis=1, keepdims=True)
            error[index[: error.shape[0]], y[rows]] -= 1
            gradient = part.T @ (error / error.shape[0])
            step += 1
            mean += (1 - BETA1) * (gradient - mean)
            square += (1 - BETA2) * (gradient * gradient - square)
            scale = xp.sqrt(square / (1 - BETA2**step)) + EPSILON
            W *= 1 - lr * weight_decay
            W -= (lr / (1 - BETA1**step)) * mean / scale
    return W
