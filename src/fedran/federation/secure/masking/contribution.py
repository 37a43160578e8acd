"""What a secure sum adds up: a site's totals as integers, the sum as a summary, and what it spends.

The layout of the vector is fixed before any data is seen. ``Content`` describes it, and its digest
is part of every key and signature of an attempt. So sites that were told different layouts, class
lists, resolutions or noise cannot add up anything.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import Label
from fedran.core.private.dp import Budget, Mechanism, levels_for
from fedran.core.private.sketch_sums import (
    SketchSums,
    aware_omega,
    blind_omega,
    omega_codes,
    omega_from_codes,
)
from fedran.core.solve.nystrom import sketch_to_summary
from fedran.core.summary import Summary
from fedran.federation.protocol.limits import MAX_ROWS, MAX_SITES, MAX_WIDTH
from fedran.federation.protocol.messages import read_labels, read_object
from fedran.federation.secure.masking.attempt import canonical_json, check_digest
from fedran.wire.container import Container, pack, unpack
from fedran.wire.fixed_point import FixedPoint, sketch_fixed_point, sketch_rounding
from fedran.wire.validation import DEFAULT_LIMITS

OMEGA, CENTER = "omega", "center"
OMEGA_SUFFIX = ".omega"
"""Ends the name of the test matrix beside a request, in messages and files."""


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
        header = read_object(fields, "noise")
        epsilon, delta = header.number("epsilon"), header.number("delta")
        try:
            Budget(epsilon, delta)
        except ValueError as reason:
            raise Refused("noise", "a budget", str(reason)) from None
        return cls(epsilon, delta, header.integer("honest", 1, MAX_SITES))

    @property
    def budget(self) -> Budget:
        """What one row spends in one sum."""
        return Budget(self.epsilon, self.delta)

    def mechanism(self, in_features: int, rows: int, sites: int) -> Mechanism:
        """The integers and the noise, for at most this many sites, and rows of all together."""
        levels = levels_for(rows, self.budget, max(1.0, sites / self.honest))
        try:
            return Mechanism(in_features, self.budget, self.honest, levels)
        except ValueError as reason:
            expected = f"a limit that leaves enough resolution for {in_features} features"
            raise Refused("max_rows", expected, str(reason), hint="lower max_rows") from None


@dataclass(frozen=True)
class Content:
    """What the numbers of a secure sum mean."""

    classes: tuple[Label, ...]
    """The class list. A site that has no row of a class adds zeros for it."""
    sketch: int
    """Columns of the sketch of the Gram matrix; 0: the Gram matrix itself, packed."""
    omega: str
    """SHA-256 of the encoded test matrix of the sketch; empty: a random one, from ``seed``."""
    seed: int
    sites: int
    """The most sites of the sum. Every contribution leaves room for as many."""
    max_rows: int
    """The most rows of one site. The resolution of the numbers follows from it."""
    noise: Noise | None = None
    """Differential privacy: what each site adds to its numbers. ``omega`` is then the digest of the
    released mean from which rows are measured; empty: rows are not centred."""

    @classmethod
    def read(cls, fields: object) -> Content:
        """The content in a message. Every field is checked, unknown fields are ignored."""
        header = read_object(fields, "content")
        omega = header.text("omega", 64)
        return cls(
            read_labels(header, "classes"),
            header.integer("sketch", 0, MAX_WIDTH),
            check_digest(omega, "omega") if omega else "",
            header.integer("seed", 0, 2**32 - 1),
            header.integer("sites", 1, MAX_SITES),
            header.integer("max_rows", 1, MAX_ROWS),
            Noise.read(header.fields.get("noise")),
        )

    def fields(self) -> dict[str, Any]:
        """The content as plain values, for a message."""
        return {**asdict(self), "classes": list(self.classes)}

    @property
    def digest(self) -> str:
        """SHA-256 of all fields."""
        return hashlib.sha256(canonical_json(self.fields())).hexdigest()

    @property
    def width(self) -> int | None:
        """Columns of the sketch; None for the Gram matrix itself."""
        return self.sketch or None

    def length(self, fingerprint: Fingerprint) -> int:
        """How many numbers every site sends."""
        if self.noise is None:
            return self.fixed_point(fingerprint).size
        return self._uncentred(fingerprint).size(len(self.classes))

    def mechanism(self, fingerprint: Fingerprint, encoded_center: bytes) -> Mechanism:
        """The mechanism of a sum with noise. Another centre than the agreed one is refused."""
        found = self._uncentred(fingerprint)
        if not self.omega:
            return found
        message = self._agreed(encoded_center, CENTER)
        center = message.tensor("center", "F64", (found.in_features,))
        if not np.all(np.isfinite(center)):
            raise Refused("center", "finite values", "NaN or infinity")
        return found.centred(center)

    def _uncentred(self, fingerprint: Fingerprint) -> Mechanism:
        assert self.noise is not None
        rows = self.max_rows * self.sites
        return self.noise.mechanism(int(str(fingerprint.fields["M"])), rows, self.sites)

    def fixed_point(self, fingerprint: Fingerprint) -> FixedPoint:
        """The scales of the numbers. They follow from public values only."""
        return sketch_fixed_point(
            fingerprint,
            len(self.classes),
            self.width,
            most_rows=self.max_rows,
            n_sites=self.sites,
        )

    def test_matrix(self, out_features: int, encoded: bytes) -> NDArray[np.float32] | None:
        """Omega (M, s), decoded or drawn; None where the Gram matrix itself is summed."""
        if not self.sketch:
            return None
        if not self.omega:
            return np.asarray(blind_omega(out_features, self.sketch, self.seed))
        message = self._agreed(encoded, OMEGA)
        codes = message.tensor("codes", "I8", (out_features, self.sketch))
        return omega_from_codes(codes, message.header.number("step"))

    def _agreed(self, encoded: bytes, kind: str) -> Container:
        """A message of the kind whose digest is ``omega``. Any other is refused."""
        if hashlib.sha256(encoded).hexdigest() != self.omega:
            raise Refused(kind, "the one that was agreed", "another one, or none")
        return unpack(encoded, DEFAULT_LIMITS).of_kind(kind)


def encode_aware_omega(previous: Summary, columns: int, seed: int) -> bytes:
    """The directions of an earlier task's summary as the test matrix of the next task's sketch."""
    codes, step = omega_codes(aware_omega(previous.factor, columns, seed))
    return pack(OMEGA, {"step": step}, {"codes": codes})


def encode_center(center: NDArray[np.float64]) -> bytes:
    """The mean of released rows, from which the rows of the next task are measured."""
    return pack(CENTER, {}, {"center": center})


def encode_contribution(
    found: SketchSums, content: Content, fingerprint: Fingerprint
) -> NDArray[np.uint32]:
    """A site's totals as integers modulo 2^32, ready to be masked.

    Refused if there are more rows than agreed, ValueError if a number is so large that the sum over
    all sites could overflow. The reason must stay at the site.
    """
    rows = sum(found.sums.counts)
    if rows > content.max_rows:
        raise Refused("rows", f"at most {content.max_rows}, the server's max_rows", rows)
    return content.fixed_point(fingerprint).encode(found.vector(), content.sites)


def sum_to_summary(
    total: NDArray[np.uint32],
    content: Content,
    fingerprint: Fingerprint,
    out_features: int,
    n_sites: int,
    encoded_omega: bytes,
) -> Summary:
    """The summary of all rows of the sites whose contributions were summed.

    A sum that cannot describe rows is refused: a site added other numbers than its totals. Noise
    makes such sums anyway, so with noise they are corrected instead.
    """
    if content.noise is not None:
        mechanism = content.mechanism(fingerprint, encoded_omega)
        vector = total.view(np.int32).astype(np.int64)
        summary = mechanism.noisy_sums(vector, content.classes, n_sites).summary(fingerprint)
        return replace(summary, route=f"private sum of {n_sites} sites").validate()
    fixed = content.fixed_point(fingerprint)
    found = SketchSums.from_vector(
        fixed.decode(total), content.classes, out_features, content.width
    )
    omega = content.test_matrix(out_features, encoded_omega)
    rounding = sketch_rounding(fixed, n_sites)
    summary = sketch_to_summary(found, omega, fingerprint, rounding=rounding)
    return replace(summary, route=f"secure sum of {n_sites} sites, {summary.route}").validate()
