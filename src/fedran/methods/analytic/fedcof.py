"""FedCOF: class covariances estimated from the spread of the clients' class means."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.accounts import Accounts
from fedran.core.head import Head, make_head
from fedran.core.labels import Label, ordered
from fedran.core.ridge import solve_gram
from fedran.methods.analytic.class_sums import ClassSumsClient, unpack_sums
from fedran.methods.analytic.gram_based import unit_columns
from fedran.methods.analytic.maps import Raw
from fedran.methods.analytic.one_round import HeadMethod
from fedran.methods.protocol import Claims, Spec
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS


@dataclass(frozen=True)
class Means:
    """What every client said about one class: sums (k, d) and counts (k,)."""

    sums: NDArray[np.float64]
    counts: NDArray[np.int64]

    def and_another(self, row: NDArray[np.float64], count: int) -> Means:
        """With one more client."""
        return Means(np.vstack([self.sums, row]), np.append(self.counts, count))


@dataclass(frozen=True)
class CofState:
    """All class means of all clients, and the newest head."""

    phi: Raw
    means: dict[Label, Means] = field(default_factory=dict)
    head: Head | None = None


@dataclass(frozen=True)
class FedCOF(ClassSumsClient, HeadMethod):
    r"""W_c from ``G = sum_c (N_c - 1)(S_c + gamma I) + N m m'`` and the class sums.

    ``S_c = sum_k n_kc (m_kc - m_c)(m_kc - m_c)' / (K_c - 1)`` over the K_c clients that hold
    class c (zero for one client), m the mean of all rows. The scatter between classes is left
    out on purpose, as published. (K C) d^2 operations a task.
    """

    gamma: float = 1.0

    name = "FedCOF"
    claims = Claims(order_free=True)
    verified = "partly: equals its formula written out; its published tables use other backbones"

    def init(self, spec: Spec, seed: int) -> CofState:
        """No class yet."""
        return CofState(Raw(spec.in_features))

    def aggregate(
        self,
        state: CofState,
        task: int,
        round_: int,
        uploads: dict[str, bytes],
    ) -> CofState:
        """Collect the means, estimate, solve."""
        means = dict(state.means)
        none = Means(np.zeros((0, state.phi.in_features)), np.zeros(0, dtype=np.int64))
        for blob in uploads.values():
            for c, (row, n) in unpack_sums(blob, state.phi.in_features).items():
                means[c] = means.get(c, none).and_another(row, n)
        head = self._solve(state.phi, means) if means else None
        return replace(state, means=means, head=head)

    def _solve(self, phi: Raw, means: dict[Label, Means]) -> Head:
        classes = ordered(means)
        sums = np.stack([means[c].sums.sum(axis=0) for c in classes])
        counts = np.array([means[c].counts.sum() for c in classes], dtype=np.float64)
        G = np.zeros((phi.in_features, phi.in_features))
        for c, n in zip(classes, counts, strict=True):
            G += (n - 1) * scatter(means[c])
        mean = sums.sum(axis=0) / counts.sum()
        G += counts.sum() * np.outer(mean, mean)
        lam = self.gamma * float(np.sum(counts - 1)) or self.gamma  # one row a class
        accounts = Accounts(int(counts.sum()), float(np.trace(G)))
        solution = solve_gram(np.asfortranarray(G), sums.T, lam)
        return unit_columns(make_head(solution, sums.T, lam, accounts, classes, None))

    def dump(self, state: CofState) -> bytes:
        """Sums and counts of every client and class; the head follows from them."""
        classes = ordered(state.means)
        clients = [len(state.means[c].counts) for c in classes]
        counts = [int(n) for c in classes for n in state.means[c].counts]
        rows = [state.means[c].sums for c in classes] or [np.zeros((0, state.phi.in_features))]
        fields = {"classes": list(classes), "clients": clients, "counts": counts}
        return pack("cof-state", fields, {"sums": np.concatenate(rows)})

    def load(self, blob: bytes, spec: Spec, seed: int) -> CofState:
        """The state that ``dump`` wrote."""
        message = unpack(blob, FILE_LIMITS)
        classes = message.header.labels("classes", FILE_LIMITS)
        clients = message.header.integers("clients", len(classes), 1)
        counts = np.array(message.header.integers("counts", sum(clients), 1), dtype=np.int64)
        rows = message.tensor("sums", "F64", (sum(clients), spec.in_features))
        ends = np.cumsum(clients)[:-1]
        parts = zip(np.split(rows, ends), np.split(counts, ends), strict=True)
        means = {c: Means(*part) for c, part in zip(classes, parts, strict=True)} if classes else {}
        state = replace(self.init(spec, seed), means=means)
        return replace(state, head=self._solve(state.phi, means)) if means else state


def scatter(means: Means) -> NDArray[Any]:
    """S_c of one class, (d, d): unbiased where clients' rows are drawn alike; zero for one."""
    if len(means.counts) < 2:
        return np.zeros((means.sums.shape[1],) * 2)
    centred = means.sums / means.counts[:, None] - means.sums.sum(axis=0) / means.counts.sum()
    return (centred.T * means.counts) @ centred / (len(means.counts) - 1)
