"""What analytic methods share: one round per task, frozen features, checks, heads."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, as_matrix, cast, namespace, require_finite, to_device
from fedran.core.errors import Refused
from fedran.core.features import Kind, RandomFeatures
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import Label, encode_labels
from fedran.core.solve.head import Diagnosis, Head
from fedran.core.sums.accounts import Accounts
from fedran.settings import at_least, positive
from fedran.wire.codec import encode
from fedran.wire.container import Container, pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.base import BaseMethod
from fedran_bench.methods.protocol import ClientData

LARGEST_GRAM = 1e30
"""Larger entries of a Gram would overflow float32 once some clients are added."""
LARGEST_ROW = 1e12
"""Larger features would overflow float32 once they are mapped, squared and added."""

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


def require_few_rows(data: ClientData, rows: int, most_rows: int) -> None:
    """ValueError if a client has more rows in a task than the setting ``most_rows`` allows."""
    if rows > most_rows:
        raise ValueError(
            f"client {data.client} has {rows} rows in this task, and most_rows allows "
            f"{most_rows}; raise most_rows at all clients"
        )


def pack_integers(kind: str, fields: dict[str, Any], integers: NDArray[np.uint32]) -> bytes:
    """A message with a vector of integers modulo 2^32, which the server adds."""
    return pack(kind, fields, {"vector": integers.astype("<u4").view(np.uint8)})


def read_integers(message: Container, size: int) -> NDArray[np.uint32]:
    """The vector of a message from ``pack_integers``."""
    message.only("vector")
    return message.tensor("vector", "U8", (4 * size,)).view("<u4")


def pack_uploads(kind: str, uploads: Sequence[bytes]) -> bytes:
    """The state of a server that keeps all uploads."""
    return pack(kind, {"sizes": [len(blob) for blob in uploads]}, {"uploads": b"".join(uploads)})


def unpack_uploads(kind: str, blob: bytes) -> tuple[bytes, ...]:
    """Inverse of ``pack_uploads``."""
    message = unpack(blob, FILE_LIMITS).of_kind(kind)
    sizes, joined = message.header.items("sizes", 10**7), message.stream("uploads")
    ends = np.cumsum(message.header.integers("sizes", len(sizes), 1), dtype=np.int64).tolist()
    return tuple(joined[i:j] for i, j in pairwise([0, *ends]))


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
    smallest, largest = float(eigenvalues.min()), float(eigenvalues.max())
    diagnosis = Diagnosis(
        route=f"{route}, no ridge and so no bound",
        lam=0.0,
        f=accounts.cut_fraction,
        n_rows=accounts.n_rows,
        effective_rank=float(eigenvalues.sum() ** 2 / (eigenvalues @ eigenvalues)),
        condition=min(largest / smallest, sys.float_info.max),
        residual=0.0,
    )
    return Head(cast(weights, "float32"), classes, diagnosis, fingerprint)


def trained_head(
    weights: Array, classes: tuple[Label, ...], route: str, n_rows: int, rank: int
) -> Head:
    """A head that the server trained in ``rank`` dimensions: nothing is solved, nothing bounded."""
    diagnosis = Diagnosis(
        route=f"{route}, no bound",
        lam=0.0,
        f=0.0,
        n_rows=n_rows,
        effective_rank=float(rank),
        condition=1.0,
        residual=0.0,
    )
    return Head(cast(weights, "float32"), classes, diagnosis)
