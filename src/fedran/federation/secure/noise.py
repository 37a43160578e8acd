"""What the sites of a private sum agree on, beside the layout: budget, honest sites, the centre."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedran.core.dp import Budget, Mechanism, levels_for
from fedran.core.errors import Refused
from fedran.federation.secure.attempt import MAX_SITES
from fedran.wire.container import pack, unpack
from fedran.wire.validation import DEFAULT_LIMITS, Header

CENTER = "center"


@dataclass(frozen=True)
class Noise:
    """The noise of a private sum: every site adds its share of it."""

    epsilon: float
    delta: float
    honest: int
    """Shares that must be in the sum and unknown to everybody else for the guarantee to hold."""

    @classmethod
    def read(cls, fields: object) -> Noise | None:
        """The noise in a message, checked; None: the sum has none."""
        if fields is None:
            return None
        if not isinstance(fields, Mapping):
            raise Refused("noise", "an object", type(fields).__name__)
        header = Header(dict(fields))
        found = cls(
            header.number("epsilon"), header.number("delta"), header.integer("honest", 1, MAX_SITES)
        )
        try:
            found.budget  # noqa: B018
        except ValueError as reason:
            raise Refused("noise", "a budget", str(reason)) from None
        return found

    @property
    def budget(self) -> Budget:
        """What one row spends in one sum."""
        return Budget(self.epsilon, self.delta)

    def mechanism(
        self, in_features: int, rows: int, sites: int, center: NDArray[np.float64] | None
    ) -> Mechanism:
        """The integers and the noise, for at most this many sites, and rows of all together."""
        levels = levels_for(rows, self.budget, max(1.0, sites / self.honest))
        try:
            found = Mechanism(in_features, self.budget, self.honest, levels)
        except ValueError as reason:
            expected = f"a limit that leaves enough resolution for {in_features} features"
            raise Refused("max_rows", expected, str(reason), hint="lower max_rows") from None
        return found if center is None else found.centred(center)


def encode_center(center: NDArray[np.float64]) -> bytes:
    """The mean of released rows, from which the rows of the next task are measured."""
    return pack(CENTER, {}, {"center": center})


def decode_center(encoded: bytes, digest: str, in_features: int) -> NDArray[np.float64] | None:
    """Inverse of ``encode_center``; None without a digest. Refuses another centre than agreed."""
    if not digest:
        return None
    if hashlib.sha256(encoded).hexdigest() != digest:
        raise Refused("center", "the one that was agreed", "another one, or none")
    message = unpack(encoded, DEFAULT_LIMITS).of_kind(CENTER)
    center = message.tensor("center", "F64", (in_features,))
    if not math.isfinite(float(np.sum(np.abs(center)))):
        raise Refused("center", "finite values", "NaN or infinity")
    return center
