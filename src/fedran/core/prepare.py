"""Rows as every feature map prepares them: square roots for ``hellinger``, then unit norm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike

from fedran.core._linalg.arrays import (
    Array,
    Float,
    Float32,
    as_matrix,
    cast,
    device,
    namespace,
    to_numpy,
)
from fedran.core.errors import Refused, positive_integer
from fedran.core.fingerprint import Field, Fingerprint, check_fingerprint
from fedran.core.kernel import BLOCK_BYTES, blocks

Kind = Literal["hellinger", "cosine", "relu"]
KINDS: tuple[Kind, ...] = get_args(Kind)
UnitKind = Literal["hellinger", "cosine"]
"""Kinds that give rows unit norm, as kernels, points and secure sums need."""
MAP_VERSION = 2
OWN_FIELDS = {"d", "kind", "bias", "map_version", "M", "seed", "projected"}
"""Fields of fingerprints that a source may not have."""


class PreparedRows:
    """What happens to features Z before they are compared or projected."""

    _stated: ClassVar[dict[str, tuple[str, Any]]] = {
        "d": ("in_features", None),
        "kind": ("kind", None),
        "bias": ("bias", None),
    }
    """Field of a fingerprint -> the argument that it states, and its value without the field."""

    def __init__(
        self, in_features: int, kind: Kind, bias: bool, source: str | Mapping[str, Field] | None
    ) -> None:
        self.in_features = positive_integer(in_features, "in_features")
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        self.kind = kind
        if not isinstance(bias, (bool, np.bool_)):
            raise ValueError(f"bias must be True or False, got {bias!r}")
        self.bias = bool(bias)
        if source is not None and not isinstance(source, (str, Mapping)):
            raise TypeError(f"source must be a str or a mapping, got {type(source).__name__}")
        self.source = {"backbone": source} if isinstance(source, str) else dict(source or {})
        if taken := OWN_FIELDS & self.source.keys():
            raise ValueError(f"source may not redefine the map's own fields: {sorted(taken)}")
        own: dict[str, Field] = {
            "d": self.in_features,
            "kind": self.kind,
            "bias": self.bias,
            "map_version": MAP_VERSION,
        }
        self.input_fingerprint = Fingerprint({**self.source, **own})
        """The parameters of ``prepare``: those of a map without M and seed."""

    @classmethod
    def from_fingerprint(cls, fingerprint: Fingerprint) -> Self:
        """The map that a fingerprint describes, for example that of a message or a head.

        >>> KernelFeatures.from_fingerprint(KernelFeatures(3, source="a backbone").fingerprint)
        KernelFeatures(in_features=3, kind='cosine', source={'backbone': 'a backbone'})
        """
        check_fingerprint(fingerprint, or_none=False)
        fields = dict(fingerprint.fields)
        version = fields.pop("map_version", None)
        if isinstance(version, float) or version != MAP_VERSION:
            raise Refused("fingerprint", f"a feature map of version {MAP_VERSION}", version)
        own = {name: fields.pop(key, default) for key, (name, default) in cls._stated.items()}
        try:
            return cls(**own, source=fields)
        except ValueError as reason:
            raise Refused("fingerprint", f"one of {cls.__name__}", str(reason)) from None

    def prepare(self, Z: ArrayLike | Array) -> Float32[Array, "n prepared"]:
        """Rows as the kind prescribes before the projection, (n, d) or with a bias (n, d + 1)."""
        return self._prepared(self._accepted(Z))

    def _accepted(self, Z: ArrayLike | Array) -> Float[Array, "n d"]:
        """Z as a matrix of floats; refuses NaN, infinity and what the kind does not allow."""
        Z = as_matrix(Z, "Z", self.in_features)
        xp = namespace(Z)
        # One sum is finite unless a value is not, or finite values overflow: then look closely.
        with np.errstate(over="ignore", invalid="ignore"):
            suspicious = not bool(xp.isfinite(xp.sum(Z)))
        if suspicious:
            bad = np.argwhere(~np.isfinite(to_numpy(Z)))
            if len(bad):
                row, column = (int(i) for i in bad[0])
                what = "NaN" if bool(xp.isnan(Z[row, column])) else "infinity"
                raise Refused(
                    "Z",
                    "finite values",
                    f"{what} in row {row}, column {column}",
                    hint="impute missing values, or leave such rows out",
                )
        if self.kind == "hellinger":
            hint = "use kind='cosine' for features of any sign"
            require_nonnegative(Z, "Z", "as kind 'hellinger' requires", hint)
        return Z

    def _prepared(self, Z: Float[Array, "n d"]) -> Float32[Array, "n prepared"]:
        xp = namespace(Z)
        if self.kind == "hellinger":
            Z = xp.sqrt(Z)
        if self.bias:
            ones = xp.ones((Z.shape[0], 1), dtype=Z.dtype, device=device(Z))
            Z = xp.concat([Z, math.sqrt(self.in_features) * ones], axis=1)
        with np.errstate(over="ignore", invalid="ignore"):  # checked where H is used
            return cast(Z if self.kind == "relu" else unit_rows(Z), "float32")


class KernelFeatures(PreparedRows):
    """The rows of unit norm that a kernel head compares.

    Parameters
    ----------
    in_features:
        d, the width of the backbone's features Z.
    kind:
        ``"cosine"`` for features of any sign, ``"hellinger"`` for features that are never
        negative, such as the pooled output of a network that ends in a ReLU.
    bias:
        Append the constant sqrt(d) to every row before it is normalised, so that the length of a
        row still counts.
    source:
        Where Z comes from: a name, or a mapping such as ``{"backbone": ..., "weights": ...}``. It
        becomes part of the fingerprint.

    Examples
    --------
    >>> phi = KernelFeatures(2, kind="hellinger", source="my backbone")
    >>> phi([[9.0, 16.0]]).round(2).tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """

    def __init__(
        self,
        in_features: int,
        kind: Kind = "cosine",
        bias: bool = False,
        source: str | Mapping[str, Field] | None = None,
    ) -> None:
        if kind == "relu":
            raise ValueError("kind must be cosine or hellinger: a kernel needs rows of unit norm")
        super().__init__(in_features, kind, bias, source)
        self.fingerprint = self.input_fingerprint

    @property
    def width(self) -> int:
        """Columns of prepared rows: d, or d + 1 with a bias."""
        return self.in_features + self.bias

    def __call__(self, Z: ArrayLike | Array) -> Float32[Array, "n prepared"]:
        """Prepared rows, (n, d), or (n, d + 1) with a bias."""
        return self.prepare(Z)

    def blocks(
        self, Z: ArrayLike | Array, max_bytes: int = BLOCK_BYTES
    ) -> Iterator[tuple[slice, Float32[Array, "_ prepared"]]]:
        """Iterate over (rows, phi(Z[rows])) with blocks of at most ``max_bytes`` (or one row)."""
        Z = self._accepted(Z)
        return ((r, self._prepared(Z[r])) for r in blocks(Z.shape[0], self.width, most=max_bytes))

    def __repr__(self) -> str:
        bias = ", bias=True" if self.bias else ""
        source = f", source={self.source!r}" if self.source else ""
        return f"KernelFeatures(in_features={self.in_features}, kind={self.kind!r}{bias}{source})"


def unit_rows(Z: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Rows divided by their Euclidean norm; rows of zeros stay zero."""
    xp = namespace(Z)
    # By the largest value first, so that no square overflows or underflows.
    largest = xp.max(xp.abs(Z), axis=1, keepdims=True)
    Z = Z / xp.where(largest > 0, largest, xp.ones_like(largest))
    norms = xp.linalg.vector_norm(Z, axis=1, keepdims=True)
    return Z / xp.where(norms > 0, norms, xp.ones_like(norms))


def kind_for(nonnegative: bool | None) -> UnitKind:
    """The kind for features that are declared never negative, or not.

    >>> kind_for(True), kind_for(False), kind_for(None)
    ('hellinger', 'cosine', 'cosine')
    """
    return "hellinger" if nonnegative else "cosine"


def require_nonnegative(Z: Float[Array, "n d"], name: str, why: str, hint: str = "") -> None:
    """Refuse negative values, naming the first row that holds one and its smallest value."""
    xp = namespace(Z)
    bad = xp.any(Z < 0, axis=1)
    if bool(xp.any(bad)):
        row = int(np.argmax(to_numpy(bad)))
        raise Refused(
            name, f"values of at least 0, {why}", f"{float(xp.min(Z[row, :]))} in row {row}", hint
        )
