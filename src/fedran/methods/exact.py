"""The exact Gram at the random features: what analytic methods send without compression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.accounts import Accounts
from fedran.core.arrays import as_matrix
from fedran.core.errors import Refused
from fedran.core.exact_sum import ExactSum, pack_lower, unpack_lower
from fedran.core.features import RandomFeatures
from fedran.core.head import Head, make_head
from fedran.core.labels import Label, encode_labels, ordered
from fedran.core.ridge import Ridge, solve_gram
from fedran.core.summarize import class_sums
from fedran.methods.one_round import HeadMethod
from fedran.methods.protocol import Claims, ClientData, Spec
from fedran.wire.container import pack, unpack
from fedran.wire.limits import FILE_LIMITS


@dataclass(frozen=True)
class GramState:
    """Gram, class sums and accounts over everything, and the newest head."""

    phi: RandomFeatures
    gram: NDArray[np.float32]
    sums: dict[Label, NDArray[np.float64]]
    accounts: Accounts
    head: Head | None = None


@dataclass(frozen=True)
class Exact(HeadMethod):
    """Every client sends the lower triangle of H'H and its class sums, in float32."""

    out_features: int = 8192

    name = "Exact Gram"
    claims = Claims(order_free=True, partition_free=True, exact=True)
    sends = "packed (M, M) Gram and class sums, float32"

    def params(self) -> dict[str, Any]:
        """The width of the features."""
        return {"out_features": self.out_features}

    def init(self, spec: Spec, seed: int) -> GramState:
        """A zero Gram."""
        phi = RandomFeatures(spec.in_features, self.out_features, seed=seed)
        zero = np.zeros((self.out_features, self.out_features), dtype=np.float32, order="F")
        return GramState(phi, zero, {}, Accounts())

    def client(
        self,
        cstate: RandomFeatures | None,
        message: bytes,  # noqa: ARG002
        data: ClientData,
        seed: int,
    ) -> tuple[RandomFeatures, bytes]:
        """Gram and class sums of the labelled rows."""
        phi = cstate or RandomFeatures(data.X.shape[1], self.out_features, seed=seed)
        classes, codes = encode_labels(data.y, len(data.X))
        X = as_matrix(data.X, "X")[codes >= 0]
        codes = codes[codes >= 0]
        total = ExactSum(self.out_features, stack=False)
        sums = np.zeros((self.out_features, len(classes)))
        energy = 0.0
        for rows, H in phi.blocks(X):
            total.add(H.T)
            sums += class_sums(H, codes[rows], len(classes))
            energy += float(np.sum(H * H, dtype=np.float64))
        if not np.isfinite(energy):
            raise ValueError("X holds NaN or infinite values; remove or repair such rows")
        fields = {
            "classes": list(classes),
            "accounts": {"n_rows": len(X), "energy": energy},
        }
        gram = pack_lower(total.gram())
        return phi, pack("gram", fields, {"gram": gram, "sums": sums.T.astype(np.float32)})

    def aggregate(
        self,
        state: GramState,
        task: int,  # noqa: ARG002
        round_: int,  # noqa: ARG002
        uploads: dict[str, bytes],
    ) -> GramState:
        """Add, then solve with the default ridge rule (nothing was cut)."""
        gram, sums, accounts = state.gram.copy(order="F"), dict(state.sums), state.accounts
        for blob in uploads.values():
            message = unpack(blob, FILE_LIMITS)
            if message.kind != "gram":
                raise Refused("kind", "gram", message.kind)
            M = self.out_features
            classes = message.header.labels("classes", FILE_LIMITS)
            gram += unpack_lower(message.tensor("gram", "F32", (M * (M + 1) // 2,)), M)
            for c, row in zip(
                classes, message.tensor("sums", "F32", (len(classes), M)), strict=True
            ):
                sums[c] = sums.get(c, 0.0) + row.astype(np.float64)
            section = message.header.section("accounts")
            accounts += Accounts(section.integer("n_rows"), section.number("energy"))
        after = replace(state, gram=gram, sums=sums, accounts=accounts)
        return replace(after, head=_solve(after))

    def dump(self, state: GramState) -> bytes:
        """Gram, sums and accounts; the head follows from them."""
        classes = ordered(state.sums)
        accounts = {"n_rows": state.accounts.n_rows, "energy": state.accounts.energy}
        rows = [state.sums[c] for c in classes]
        sums = np.stack(rows) if rows else np.zeros((0, self.out_features))
        fields = {"classes": list(classes), "accounts": accounts}
        return pack("gram-state", fields, {"gram": pack_lower(state.gram), "sums": sums})

    def load(self, blob: bytes, spec: Spec, seed: int) -> GramState:
        """The state that ``dump`` wrote, its head solved again."""
        message = unpack(blob, FILE_LIMITS)
        M = self.out_features
        classes = message.header.labels("classes", FILE_LIMITS)
        section = message.header.section("accounts")
        rows = message.tensor("sums", "F64", (len(classes), M))
        state = GramState(
            RandomFeatures(spec.in_features, M, seed=seed),
            unpack_lower(message.tensor("gram", "F32", (M * (M + 1) // 2,)), M),
            dict(zip(classes, rows, strict=True)),
            Accounts(section.integer("n_rows"), section.number("energy")),
        )
        return replace(state, head=_solve(state)) if classes else state


def _solve(state: GramState) -> Head:
    classes = ordered(state.sums)
    B = np.stack([state.sums[c] for c in classes], axis=1)
    lam = Ridge().value(state.accounts)
    solution = solve_gram(state.gram, B, lam)
    return make_head(solution, B, lam, state.accounts, classes, state.phi.fingerprint)
