"""FedCOF: class covariances estimated from the spread of the clients' class means."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedran.core.accounts import Accounts
from fedran.core.class_sums import ClassSums
from fedran.core.head import Head, make_head
from fedran.core.ridge import solve_gram
from fedran.methods.analytic.base import HeadMethod, Positive, unit_columns
from fedran.methods.analytic.feature_maps import Raw
from fedran.methods.analytic.fedncm import ClassSumsClient, unpack_sums
from fedran.methods.protocol import Claims, Spec
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS


@dataclass(frozen=True)
class CofState:
    """The class sums of every upload, and the newest head."""

    phi: Raw
    uploads: tuple[ClassSums, ...] = ()
    head: Head | None = None


@dataclass(frozen=True)
class FedCOF(ClassSumsClient, HeadMethod):
    r"""W_c from ``G = sum_c (N_c - 1)(S_c + gamma I) + N m m'`` and the class sums.

    ``S_c = sum_k n_kc (m_kc - m_c)(m_kc - m_c)' / (K_c - 1)`` over the K_c clients that hold
    class c (zero for one client), m the mean of all rows. The scatter between classes is left
    out on purpose, as published. (K C) d^2 operations per task.
    """

    gamma: Positive = 1.0
    """Shrinkage of every class covariance towards the identity. The published scripts use 0.1 for
    MobileNetV2 and 1 for SqueezeNet and ViT-B/16."""

    name = "FedCOF"
    claims = Claims(order_free=True)
    verified = "yes: equals its formula written out and the weights of the published code"

    def init(self, spec: Spec, seed: int) -> CofState:
        """No class yet."""
        return CofState(Raw(spec.in_features))

    def aggregate(
        self, state: CofState, task: int, round_: int, uploads: dict[str, bytes]
    ) -> CofState:
        """Collect the class sums, estimate the covariances, solve."""
        arrived = tuple(unpack_sums(blob, state.phi.in_features) for blob in uploads.values())
        return self._solved(replace(state, uploads=state.uploads + arrived))

    def _solved(self, state: CofState) -> CofState:
        total = sum(state.uploads, ClassSums.empty(state.phi.in_features))
        if not total:
            return replace(state, head=None)
        counts = np.array(total.counts, dtype=np.float64)
        G = np.zeros((total.out_features, total.out_features))
        for c, n in zip(total.classes, counts, strict=True):
            holders = [u for u in state.uploads if c in u]
            sums = np.array([u[c] for u in holders])
            G += (n - 1) * scatter(sums, np.array([u.count(c) for u in holders]))
        mean = np.sum(total.sums, axis=1) / counts.sum()
        G += counts.sum() * np.outer(mean, mean)
        lam = self.gamma * float(np.sum(counts - 1)) or self.gamma  # one row per class
        accounts = Accounts(int(counts.sum()), float(np.trace(G)))
        solution = solve_gram(np.asfortranarray(G), total.sums, lam)
        head = make_head(solution, total, lam, accounts)
        return replace(state, head=unit_columns(head))

    def dump(self, state: CofState) -> bytes:
        """Sums and counts of every class in every upload; the head follows from them."""
        total = sum(state.uploads, ClassSums.empty(state.phi.in_features))
        held = [[u for u in state.uploads if c in u] for c in total.classes]
        parts = [(c, u) for c, holders in zip(total.classes, held, strict=True) for u in holders]
        fields = {
            "classes": list(total.classes),
            "clients": [len(holders) for holders in held],
            "counts": [u.count(c) for c, u in parts],
        }
        rows = [u[c] for c, u in parts]
        sums = np.array(rows).reshape(-1, state.phi.in_features)
        return pack("cof-state", fields, {"sums": sums})

    def load(self, blob: bytes, spec: Spec, seed: int) -> CofState:
        """The state that ``dump`` wrote."""
        message = unpack(blob, FILE_LIMITS)
        classes = message.header.labels("classes", FILE_LIMITS)
        clients = message.header.integers("clients", len(classes), 1)
        counts = message.header.integers("counts", sum(clients), 1)
        rows = message.tensor("sums", "F64", (sum(clients), spec.in_features))
        labels = [c for c, k in zip(classes, clients, strict=True) for _ in range(k)]
        parts = zip(labels, rows, counts, strict=True)
        uploads = tuple(ClassSums((c,), row[:, None], (n,)) for c, row, n in parts)
        return self._solved(replace(self.init(spec, seed), uploads=uploads))


def scatter(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """S_c of one class, (d, d), from the sums (k, d) and counts (k,) of k clients.

    Unbiased where the rows of all clients have the same distribution; zero for one client.
    """
    if len(counts) < 2:
        return np.zeros((sums.shape[1],) * 2)
    centred = sums / counts[:, None] - sums.sum(axis=0) / counts.sum()
    return (centred.T * counts) @ centred / (len(counts) - 1)
