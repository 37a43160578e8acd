"""FedCOF: class covariances estimated from the spread of the clients' class means."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedran.core.accounts import Accounts
from fedran.core.class_sums import ClassSums
from fedran.core.head import Head, make_head
from fedran.core.ridge import solve_gram
from fedran.methods.analytic.base import Positive, pack_uploads, unit_columns, unpack_uploads
from fedran.methods.analytic.feature_maps import Raw
from fedran.methods.analytic.fedncm import ClassSumsClient, unpack_sums
from fedran.methods.protocol import Claims, Spec, Uploads


@dataclass(frozen=True)
class CofState:
    """All uploads, and the newest head."""

    phi: Raw
    uploads: tuple[bytes, ...] = ()
    head: Head | None = None


@dataclass(frozen=True)
class FedCOF(ClassSumsClient):
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

    def aggregate(self, state: CofState, task: int, round_: int, uploads: Uploads) -> CofState:
        """Collect the class sums, estimate the covariances, solve."""
        return self._solved(replace(state, uploads=state.uploads + tuple(uploads.values())))

    def _solved(self, state: CofState) -> CofState:
        uploads = [unpack_sums(blob, state.phi.in_features) for blob in state.uploads]
        total = sum(uploads, ClassSums.empty(state.phi.in_features))
        if not total:
            return replace(state, head=None)
        counts = np.array(total.counts, dtype=np.float64)
        G = np.zeros((total.out_features, total.out_features))
        for c, n in zip(total.classes, counts, strict=True):
            holders = [u for u in uploads if c in u]
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
        """The uploads; the head follows from them."""
        return pack_uploads("cof-state", state.uploads)

    def load(self, blob: bytes, spec: Spec, seed: int) -> CofState:
        """The state that ``dump`` wrote, with its head solved again."""
        uploads = unpack_uploads("cof-state", blob)
        return self._solved(replace(self.init(spec, seed), uploads=uploads))


def scatter(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """S_c of one class, (d, d), from the sums (k, d) and counts (k,) of k clients.

    Unbiased where the rows of all clients have the same distribution; zero for one client.
    """
    if len(counts) < 2:
        return np.zeros((sums.shape[1],) * 2)
    centred = sums / counts[:, None] - sums.sum(axis=0) / counts.sum()
    return (centred.T * counts) @ centred / (len(counts) - 1)
