"""Feature maps besides RandomFeatures: raw features, a bias column, a projection."""

from __future__ import annotations

from collections.abc import Iterator

from fedran.core._linalg.arrays import Array, as_matrix, cast, device, namespace
from fedran.core._linalg.blas import matmul
from fedran.core.features import RandomFeatures
from fedran.core.fingerprint import Fingerprint

BLOCK_ROWS = 4096


class Raw:
    """Z unchanged."""

    fingerprint: Fingerprint | None = None

    def __init__(self, in_features: int) -> None:
        self.in_features = in_features

    @property
    def out_features(self) -> int:
        """M, the width of the output."""
        return self.in_features

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

    @property
    def out_features(self) -> int:
        """One more than Z has."""
        return self.in_features + 1

    def __call__(self, Z: Array) -> Array:
        """[Z, 1] in float32."""
        Z = super().__call__(Z)
        xp = namespace(Z)
        ones = xp.ones((Z.shape[0], 1), dtype=Z.dtype, device=device(Z))
        return xp.concat([Z, ones], axis=1)


class Projection(Raw):
    """Z P without an activation, to measure what the nonlinearity adds."""

    def __init__(self, in_features: int, out_features: int, seed: int) -> None:
        super().__init__(in_features)
        self.random = RandomFeatures(in_features, out_features, kind="relu", seed=seed)

    @property
    def out_features(self) -> int:
        """M."""
        return self.random.out_features

    def __call__(self, Z: Array) -> Array:
        """Z P in float32."""
        Z = super().__call__(Z)
        return matmul(Z, self.random.projection_like(Z))


FeatureMap = RandomFeatures | Raw
"""A map from features Z (n, d) to the inputs (n, M) of a linear classifier."""
