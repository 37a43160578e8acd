"""The fixed map to random features H = GELU(prepare(Z) P) that all clients share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float32,
    as_matrix,
    cast,
    device,
    is_numpy_array,
    like,
    namespace,
)
from fedran.core._linalg.blas import matmul
from fedran.core._linalg.gelu import gelu
from fedran.core.errors import Refused, positive_integer
from fedran.core.fingerprint import Field, Fingerprint, check_fingerprint
from fedran.core.kernel import BLOCK_BYTES, blocks
from fedran.core.prepare import KernelFeatures, Kind, PreparedRows

EXACT_BYTES = 4 * 2**20
"""Largest block where products are float64, which takes twice as many bytes more."""
GELU_ENERGY, GELU_VARIANCE = 0.42522, 1.12387
"""Mean and variance of gelu(x)^2 for x from N(0, 1)."""
UNIT_SLACK = 1e-4
"""By how much rounding may change the squared norm of a row of unit norm."""
NEVER = 41.4
"""-log of the probability, 1e-18, that an honest row lies outside ``row_energy_range``."""


class RandomFeatures(PreparedRows):
    """Random features ``H = activation(prepare(Z) P)`` with P from N(0, 1), fixed by a seed.

    Parameters
    ----------
    in_features:
        d, the width of the backbone's features Z.
    out_features:
        M, the width of H.
    kind:
        What happens to a row before the projection, and the activation after it.

        - ``"cosine"``: rows of unit norm, GELU. For features of any sign.
        - ``"hellinger"``: square roots, then rows of unit norm, GELU. For features that are never
          negative, such as the pooled output of a network that ends in a ReLU. A negative value
          is refused.
        - ``"relu"``: rows as they are, ReLU. The map of the FedRAN paper.
    seed:
        Fixes P. It is drawn from NumPy's legacy ``RandomState``, whose stream never changes by
        NumPy's compatibility policy, so a seed gives the same map on every machine and version.
    bias:
        Append the constant sqrt(d) to every row before it is normalised: as long as a row of d
        standardised columns is on average. Without it the map does not see the length of a row
        (``"cosine"``, ``"hellinger"``) or is proportional to it (``"relu"``), and a row of zeros
        maps to zero.
    source:
        Where Z comes from: a name, or a mapping such as ``{"backbone": ..., "weights": ...,
        "preprocessing": ...}``. It becomes part of the fingerprint.
    projected:
        False: no random features, ``phi(Z)`` is ``prepare(Z)``, and M must be its width. For
        differential privacy, whose noise grows with M.

    Notes
    -----
    ``phi(Z)`` takes an (n, d) NumPy array or torch tensor and returns (n, M) float32 of the same
    type on the same device, for 2 n d M operations. Besides the result it needs P (4 d M bytes,
    drawn at first use, and one copy per torch device) and about ``BLOCK_BYTES`` of working
    memory. ``blocks`` never holds more than one block of H. P is not pickled.

    Examples
    --------
    >>> import numpy as np
    >>> phi = RandomFeatures(in_features=3, out_features=8, kind="hellinger", seed=0)
    >>> phi(np.ones((2, 3))).shape
    (2, 8)
    >>> phi(np.array([[1.0, 2.0, -3.0]]))
    Traceback (most recent call last):
    ...
    fedran.core.errors.Refused: Z: expected values of at least 0, as kind 'hellinger' requires, \
got -3.0 in row 0; use kind='cosine' for features of any sign
    """

    _stated: ClassVar[dict[str, tuple[str, Any]]] = {
        **PreparedRows._stated,
        "M": ("out_features", None),
        "seed": ("seed", None),
        "projected": ("projected", True),
    }

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kind: Kind = "cosine",
        seed: int = 0,
        bias: bool = False,
        source: str | Mapping[str, Field] | None = None,
        projected: bool = True,
    ) -> None:
        super().__init__(in_features, kind, bias, source)
        self.out_features = positive_integer(out_features, "out_features")
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise ValueError(f"seed must be an integer, got {seed!r}")
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed must lie in 0 .. 2**32 - 1, got {seed}")
        self.seed = int(seed)
        if not isinstance(projected, (bool, np.bool_)):
            raise ValueError(f"projected must be True or False, got {projected!r}")
        self.projected = bool(projected)
        if not self.projected and self.out_features != self.in_features + self.bias:
            raise ValueError(
                f"features that are not projected have {self.in_features + self.bias} columns, so "
                f"out_features must be that, got {self.out_features}"
            )
        own: dict[str, Field] = {"M": self.out_features, "seed": self.seed}
        if not self.projected:
            own["projected"] = False
        self.fingerprint = Fingerprint({**self.input_fingerprint.fields, **own})
        self._on_device: dict[str, Float32[Array, "prepared M"]] = {}

    @cached_property
    def projection(self) -> Float32[NDArray[Any], "prepared M"]:
        """P, (d, M) float32: the float64 stream of the generator, row by row, rounded once.

        With a bias it has one more row, the last.
        """
        generator = np.random.RandomState(self.seed)
        rows = self.in_features + self.bias
        projection = np.empty((rows, self.out_features), dtype=np.float32)
        for row in projection:
            row[:] = generator.standard_normal(self.out_features)
        return projection

    def projection_like(self, Z: Float[Array, "n d"]) -> Float32[Array, "prepared M"]:
        """P in the namespace and on the device of Z.

        The copy on a torch device is made once and kept as long as the map lives.
        """
        if is_numpy_array(Z):
            return self.projection
        where = str(device(Z))
        if where not in self._on_device:
            self._on_device[where] = like(self.projection, Z)
        return self._on_device[where]

    def __call__(self, Z: ArrayLike | Array) -> Float32[Array, "n M"]:
        """H = activation(prepare(Z) P), (n, M) float32."""
        return self._mapped(self._accepted(Z))

    def project(self, X: ArrayLike | Array) -> Float32[Array, "n M"]:
        """activation(X P), (n, M) float32, for rows that are prepared already."""
        X = cast(as_matrix(X, "X", self.in_features + self.bias), "float32")
        return self._mapped(X, prepared=True)

    def blocks(
        self, Z: Any, max_bytes: int = BLOCK_BYTES, *, exact: bool = False
    ) -> Iterator[tuple[slice, Float32[Array, "_ M"]]]:
        """Iterate over (rows, H[rows]) with each block of H at most ``max_bytes`` (or one row).

        The last bits of a float32 product depend on the rows beside a row. With ``exact`` products
        are computed in float64 and rounded once, so that they hardly ever do. SciPy's sparse rows
        become dense one block at a time.
        """
        if sparse.issparse(Z):
            stored, width = Z.tocsr(), max(self.out_features, 2 * self.in_features)
            return (
                (rows, self._mapped(self._accepted(stored[rows].toarray()), exact=exact))
                for rows in blocks(stored.shape[0], width, most=max_bytes)
            )
        Z = self._accepted(Z)
        slices = blocks(Z.shape[0], self.out_features, most=max_bytes)
        return ((rows, self._mapped(Z[rows], exact=exact)) for rows in slices)

    def _mapped(
        self, Z: Float[Array, "n d"], prepared: bool = False, exact: bool = False
    ) -> Float32[Array, "n M"]:
        if not self.projected:
            return Z if prepared else self._prepared(Z)
        xp = namespace(Z)
        projection = cast(self.projection_like(Z), "float64" if exact else "float32")
        H = xp.empty((Z.shape[0], self.out_features), dtype=xp.float32, device=device(Z))
        most = EXACT_BYTES if exact else BLOCK_BYTES
        for rows in blocks(Z.shape[0], self.out_features, most=most):
            with np.errstate(over="ignore", invalid="ignore"):  # checked where H is used
                X = Z[rows] if prepared else self._prepared(Z[rows])
                if exact:
                    H[rows] = cast(matmul(cast(X, "float64"), projection), "float32")
                else:
                    matmul(X, projection, out=H[rows])
                if self.kind == "relu":
                    xp.clip(H[rows], min=0, out=H[rows])
                else:
                    gelu(H[rows])
        return H

    def __repr__(self) -> str:
        bias = ", bias=True" if self.bias else ""
        source = f", source={self.source!r}" if self.source else ""
        projected = "" if self.projected else ", projected=False"
        return (
            f"RandomFeatures(in_features={self.in_features}, out_features={self.out_features}, "
            f"kind={self.kind!r}, seed={self.seed}{bias}{source}{projected})"
        )

    def __getstate__(self) -> dict[str, object]:
        # P follows from the seed, so nothing that stores or sends the map carries it.
        return {k: v for k, v in self.__dict__.items() if k != "projection"} | {"_on_device": {}}


FeatureMap: TypeAlias = KernelFeatures | RandomFeatures


def feature_map(fingerprint: Fingerprint) -> FeatureMap:
    """The map that a fingerprint describes: random features if it states a width M.

    >>> feature_map(KernelFeatures(3, source="a backbone").fingerprint)
    KernelFeatures(in_features=3, kind='cosine', source={'backbone': 'a backbone'})
    """
    check_fingerprint(fingerprint, or_none=False)
    described = RandomFeatures if "M" in fingerprint.fields else KernelFeatures
    return described.from_fingerprint(fingerprint)


def row_energy_range(fingerprint: Fingerprint) -> tuple[float, float] | None:
    """The range of ||phi(z)||^2 for rows z that do not depend on the projection; None if unknown.

    Where prepared rows have unit norm, z P is N(0, 1), so ||phi(z)||^2 is a sum of M independent
    squares of gelu(x). By Chernoff's bound a row lies outside with probability 1e-18. Rows of
    zeros, whose random features are zero, are below the range.

    >>> low, high = row_energy_range(RandomFeatures(64, 8192).fingerprint)
    >>> round(low / 8192, 2), round(high / 8192, 2)
    (0.32, 0.59)
    """
    try:
        phi = RandomFeatures.from_fingerprint(fingerprint)
    except Refused:
        return None
    if phi.kind == "relu":
        return None
    if not phi.projected:
        return 0.0, 1 + UNIT_SLACK
    M, spread = phi.out_features, GELU_VARIANCE * NEVER * phi.out_features
    low = GELU_ENERGY * M - math.sqrt(2 * spread)
    return max(0.0, low), GELU_ENERGY * M + 2 * math.sqrt(spread) + 2 * NEVER
