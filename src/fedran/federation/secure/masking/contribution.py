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
from fedran.core.private.sketch_sums import SketchSums, blind_omega
from fedran.core.solve.nystrom import sketch_to_summary
from fedran.core.summary import Summary
from fedran.federation.protocol.limits import MAX_ROWS, MAX_SITES, MAX_WIDTH
from fedran.federation.protocol.messages import read_labels, read_object
from fedran.federation.secure.masking.attempt import canonical_json
from fedran.wire.fixed_point import FixedPoint, sketch_fixed_point, sketch_rounding
from fedran.wire.validation import Header


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
    seed: int
    """Of the test matrix of the sketch."""
    sites: int
    """The most sites of the sum. Every contribution leaves room for as many."""
    max_rows: int
    """The most rows of one site. The resolution of the numbers follows from it."""
    noise: Noise | None = None
    """Differential privacy: what each site adds to its numbers."""
    center: tuple[float, ...] = ()
    """With noise: the released mean from which rows are measured; empty: they are not centred."""

    @classmethod
    def read(cls, fields: object) -> Content:
        """The content in a message. Every field is checked, unknown fields are ignored."""
        header = read_object(fields, "content")
        center = header.items("center", MAX_WIDTH)
        return cls(
            read_labels(header, "classes"),
            header.integer("sketch", 0, MAX_WIDTH),
            header.integer("seed", 0, 2**32 - 1),
            header.integer("sites", 1, MAX_SITES),
            header.integer("max_rows", 1, MAX_ROWS),
            Noise.read(header.fields.get("noise")),
            tuple(Header({"center": x}).number("center", 1e6, -1e6) for x in center),
        )

    def fields(self) -> dict[str, Any]:
        """The content as plain values, for a message."""
        return {**asdict(self), "classes": list(self.classes), "center": list(self.center)}

    @property
    def digest(self) -> str:
        """SHA-256 of all fields."""
        return hashlib.sha256(canonical_json(self.fields())).hexdigest()

    def length(self, fingerprint: Fingerprint) -> int:
        """How many numbers every site sends."""
        if self.noise is None:
            return self.fixed_point(fingerprint).size
        return self.mechanism(fingerprint).size(len(self.classes))

    def mechanism(self, fingerprint: Fingerprint) -> Mechanism:
        """The mechanism of a sum with noise."""
        assert self.noise is not None
        width, rows = int(str(fingerprint.fields["M"])), self.max_rows * self.sites
        found = self.noise.mechanism(width, rows, self.sites)
        if len(self.center) not in (0, width):
            raise Refused("center", f"{width} numbers, or none", len(self.center))
        return found.centred(np.array(self.center)) if self.center else found

    def fixed_point(self, fingerprint: Fingerprint) -> FixedPoint:
        """The scales of the numbers. They follow from public values only."""
        return sketch_fixed_point(
            fingerprint,
            len(self.classes),
            self.sketch or None,
            most_rows=self.max_rows,
            n_sites=self.sites,
        )

    def test_matrix(self, out_features: int) -> NDArray[np.float32] | None:
        """Omega (M, s), drawn from the seed; None where the Gram matrix itself is summed."""
        if not self.sketch:
            return None
        return np.asarray(blind_omega(out_features, self.sketch, self.seed))


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
) -> Summary:
    """The summary of all rows of the sites whose contributions were summed.

    A sum that cannot describe rows is refused: a site added other numbers than its totals. Noise
    makes such sums anyway, so with noise they are corrected instead.
    """
    if content.noise is not None:
        mechanism = content.mechanism(fingerprint)
        vector = total.view(np.int32).astype(np.int64)
        summary = mechanism.noisy_sums(vector, content.classes, n_sites).summary(fingerprint)
        return replace(summary, route=f"private sum of {n_sites} sites").validate()
    fixed = content.fixed_point(fingerprint)
    width = content.sketch or None
    found = SketchSums.from_vector(fixed.decode(total), content.classes, out_features, width)
    omega = content.test_matrix(out_features)
    rounding = sketch_rounding(fixed, n_sites)
    summary = sketch_to_summary(found, omega, fingerprint, rounding=rounding)
    return replace(summary, route=f"secure sum of {n_sites} sites, {summary.route}").validate()
