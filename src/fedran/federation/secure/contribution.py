"""What a secure sum adds up: a site's totals as integers, and the sum as a summary.

The layout of the vector is fixed before any data is seen. ``Content`` describes it, and its digest
is part of every key and signature of an attempt. So sites that were told different layouts, class
lists or resolutions cannot add up anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.dp import Mechanism
from fedran.core.errors import Refused
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import Label
from fedran.core.nystrom import totals_to_summary
from fedran.core.summary import Summary
from fedran.core.totals import (
    Totals,
    aware_omega,
    blind_omega,
    omega_codes,
    omega_from_codes,
)
from fedran.federation.protocol.messages import MAX_WIDTH, read_labels
from fedran.federation.secure.attempt import MAX_SITES, canonical_json, check_digest
from fedran.federation.secure.noise import Noise, decode_center
from fedran.wire.container import pack, unpack
from fedran.wire.fixed_point import FixedPoint, row_bounds, totals_fixed_point, totals_rounding
from fedran.wire.validation import DEFAULT_LIMITS, Header

MAX_ROWS = 10**9
OMEGA = "omega"


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
        if not isinstance(fields, Mapping):
            raise Refused("content", "an object", type(fields).__name__)
        header = Header(dict(fields))
        omega = header.text("omega", 64)
        return cls(
            read_labels(header, "classes"),
            header.integer("sketch", 0, MAX_WIDTH),
            check_digest(omega, "omega") if omega else "",
            header.integer("seed", 0, 2**32 - 1),
            header.integer("sites", 1, MAX_SITES),
            header.integer("max_rows", 1, MAX_ROWS),
            Noise.read(fields.get("noise")),
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
        width = int(str(fingerprint.fields["M"]))
        rows = self.max_rows * self.sites
        return self.noise.mechanism(width, rows, self.sites, None).size(len(self.classes))

    def mechanism(self, fingerprint: Fingerprint, encoded_center: bytes) -> Mechanism:
        """The mechanism of a sum with noise."""
        assert self.noise is not None
        width = int(str(fingerprint.fields["M"]))
        center = decode_center(encoded_center, self.omega, width)
        return self.noise.mechanism(width, self.max_rows * self.sites, self.sites, center)

    def fixed_point(self, fingerprint: Fingerprint) -> FixedPoint:
        """The scales of the numbers. They follow from public values only."""
        row_norm, entry = row_bounds(fingerprint)
        return totals_fixed_point(
            len(self.classes),
            int(str(fingerprint.fields["M"])),
            self.width,
            row_norm=row_norm,
            entry=entry,
            most_rows=self.max_rows,
            n_sites=self.sites,
        )

    def test_matrix(self, out_features: int, encoded: bytes) -> NDArray[np.float32] | None:
        """Omega (M, s), decoded or drawn; None where the Gram matrix itself is summed.

        Encoded bytes with another digest than the agreed one are refused.
        """
        if not self.sketch:
            return None
        if not self.omega:
            return np.asarray(blind_omega(out_features, self.sketch, self.seed))
        if hashlib.sha256(encoded).hexdigest() != self.omega:
            raise Refused("omega", "the test matrix that was agreed", "another one, or none")
        message = unpack(encoded, DEFAULT_LIMITS).of_kind(OMEGA)
        codes = message.tensor("codes", "I8", (out_features, self.sketch))
        return omega_from_codes(codes, message.header.number("step"))


def encode_aware_omega(previous: Summary, columns: int, seed: int) -> bytes:
    """The directions of an earlier task's summary as the test matrix of the next task's sketch."""
    codes, step = omega_codes(aware_omega(previous.factor, columns, seed))
    return pack(OMEGA, {"step": step}, {"codes": codes})


def encode_contribution(
    found: Totals, content: Content, fingerprint: Fingerprint
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
        summary = mechanism.release(vector, content.classes, n_sites).summary(fingerprint)
        return replace(summary, route=f"private sum of {n_sites} sites").validate()
    fixed = content.fixed_point(fingerprint)
    found = Totals.from_vector(fixed.decode(total), content.classes, out_features, content.width)
    omega = content.test_matrix(out_features, encoded_omega)
    rounding = totals_rounding(fixed, n_sites)
    summary = totals_to_summary(found, omega, fingerprint, rounding=rounding)
    return replace(summary, route=f"secure sum of {n_sites} sites, {summary.route}").validate()
