"""The fixed map to random features H = relu(Z P) that all clients share."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
from fedran.core.errors import Refused, positive_integer
from fedran.core.fingerprint import Field, Fingerprint

MAP_VERSION = 1
BLOCK_BYTES = 64 * 2**20
"""Largest block of random features computed at a time: the working memory of ``phi(Z)``."""


class RandomFeatures:
    """Random features ``H = max(Z P, 0)`` with P from N(0, 1), fixed by a seed.

    Parameters
    ----------
    in_features:
        d, the width of the backbone's features Z.
    out_features:
        M, the width of H.
    seed:
        Fixes P. It is drawn from NumPy's legacy ``RandomState``, whose stream never changes by
        NumPy's compatibility policy, so a seed gives the same map on every machine and version.
    source:
        Where Z comes from: a name, or a mapping such as ``{"backbone": ..., "weights": ...,
        "preprocessing": ...}``. It becomes part of the fingerprint.

    Notes
    -----
    ``phi(Z)`` takes an (n, d) NumPy array or torch tensor and returns (n, M) float32 of the same
    kind on the same device, for 2 n d M operations. Besides the result it needs P (4 d M bytes,
    drawn at first use, and one copy per torch device) and at most ``BLOCK_BYTES`` of working
    memory. ``blocks`` never holds more than one block of H. P is not pickled.

    Examples
    --------
    >>> import numpy as np
    >>> phi = RandomFeatures(in_features=3, out_features=8, seed=0)
    >>> phi(np.ones((2, 3))).shape
    (2, 8)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        seed: int = 0,
        source: str | Mapping[str, Field] | None = None,
    ) -> None:
        self.in_features = positive_integer(in_features, "in_features")
        self.out_features = positive_integer(out_features, "out_features")
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise ValueError(f"seed must be an integer, got {seed!r}")
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed must lie in 0 .. 2**32 - 1, got {seed}")
        self.seed = int(seed)
        if source is not None and not isinstance(source, (str, Mapping)):
            raise TypeError(f"source must be a str or a mapping, got {type(source).__name__}")
        self.source = {"backbone": source} if isinstance(source, str) else dict(source or {})
        own: dict[str, Field] = {
            "d": self.in_features,
            "M": self.out_features,
            "seed": self.seed,
            "activation": "relu",
            "map_version": MAP_VERSION,
        }
        taken = own.keys() & self.source.keys()
        if taken:
            raise ValueError(f"source may not redefine the map's own fields: {sorted(taken)}")
        self.fingerprint = Fingerprint({**self.source, **own})
        self._start_cache()

    def _start_cache(self) -> None:
        self._on_device: dict[str, Float32[Array, "d M"]] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_fingerprint(cls, fingerprint: Fingerprint) -> RandomFeatures:
        """The map that a fingerprint describes, for example that of a summary or a head.

        >>> phi = RandomFeatures(3, 8, seed=5, source="a backbone")
        >>> RandomFeatures.from_fingerprint(phi.fingerprint)
        RandomFeatures(in_features=3, out_features=8, seed=5, source={'backbone': 'a backbone'})
        """
        fields = dict(fingerprint.fields)
        own = {name: fields.pop(name, None) for name in ("d", "M", "seed")}
        fields = {k: v for k, v in fields.items() if k not in ("activation", "map_version")}
        try:
            phi = cls(own["d"], own["M"], own["seed"], fields)  # type: ignore[arg-type]
        except ValueError as reason:
            raise Refused("fingerprint", "one of a RandomFeatures map", str(reason)) from None
        if phi.fingerprint != fingerprint:
            raise Refused(
                "fingerprint",
                f"relu features of map version {MAP_VERSION}",
                {k: fingerprint.fields.get(k) for k in ("activation", "map_version")},
            )
        return phi

    @cached_property
    def projection(self) -> Float32[NDArray[Any], "d M"]:
        """P, (d, M) float32: the float64 stream of the generator, row by row, rounded once."""
        generator = np.random.RandomState(self.seed)
        projection = np.empty((self.in_features, self.out_features), dtype=np.float32)
        for row in projection:
            row[:] = generator.standard_normal(self.out_features)
        return projection

    def projection_like(self, Z: Float[Array, "n d"]) -> Float32[Array, "d M"]:
        """P in the namespace and on the device of Z.

        The copy on a torch device is made once and kept as long as the map lives.
        """
        if is_numpy_array(Z):
            return self.projection
        with self._lock:
            where = str(device(Z))
            if where not in self._on_device:
                self._on_device[where] = like(self.projection, Z)
            return self._on_device[where]

    def __call__(self, Z: ArrayLike | Array) -> Float32[Array, "n M"]:
        """H = relu(Z P), (n, M) float32."""
        Z = as_matrix(Z, "Z", self.in_features)
        xp = namespace(Z)
        projection = self.projection_like(Z)
        H = xp.empty((Z.shape[0], self.out_features), dtype=xp.float32, device=device(Z))
        for rows in self._slices(Z.shape[0], BLOCK_BYTES):
            with np.errstate(over="ignore", invalid="ignore"):  # checked where H is used
                matmul(cast(Z[rows], "float32"), projection, out=H[rows])
            xp.clip(H[rows], min=0, out=H[rows])
        return H

    def blocks(
        self, Z: ArrayLike | Array, max_bytes: int = BLOCK_BYTES
    ) -> Iterator[tuple[slice, Float32[Array, "_ M"]]]:
        """Iterate over (rows, H[rows]) with each block of H at most ``max_bytes`` (or one row)."""
        Z = as_matrix(Z, "Z", self.in_features)
        return ((rows, self(Z[rows])) for rows in self._slices(Z.shape[0], max_bytes))

    def _slices(self, n: int, max_bytes: int) -> Iterator[slice]:
        step = max(1, max_bytes // (4 * self.out_features))
        return (slice(i, min(i + step, n)) for i in range(0, n, step))

    def __repr__(self) -> str:
        source = f", source={self.source!r}" if self.source else ""
        return (
            f"RandomFeatures(in_features={self.in_features}, "
            f"out_features={self.out_features}, seed={self.seed}{source})"
        )

    def __getstate__(self) -> dict[str, object]:
        # P follows from the seed, so nothing that stores or sends the map carries it.
        cache = ("projection", "_on_device", "_lock")
        return {k: v for k, v in self.__dict__.items() if k not in cache}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._start_cache()
