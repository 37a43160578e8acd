"""Fixed-point numbers modulo 2^32: exact sums, stated errors, and refusal instead of overflow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedran
from fedran.core.errors import Refused
from fedran.core.private.sketch_sums import (
    SketchSums,
    blind_omega,
    sketch_sums,
)
from fedran.core.solve.nystrom import SKETCH_BASE, sketch_to_summary
from fedran.wire.fixed_point import (
    FixedPoint,
    largest_code,
    row_bounds,
    sketch_fixed_point,
    sketch_rounding,
)
from helpers.core.reference import quick

bounds = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=4)


@quick
@given(bounds, st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_a_sum_differs_from_the_real_one_by_half_a_step_per_site(bounds, n_sites, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 6, len(bounds)).tolist()
    fixed = FixedPoint.for_bounds(sizes, bounds, n_sites)
    widest = np.repeat(bounds, sizes)
    parts = rng.uniform(-1, 1, (n_sites, fixed.size)) * widest
    parts[rng.random(parts.shape) < 0.2] = 1.0  # the bound itself, of one sign
    parts = np.where(parts == 1.0, widest, parts)
    codes = [fixed.encode(part, n_sites) for part in parts]
    assert all(c.dtype == np.uint32 for c in codes)
    found = fixed.decode(np.sum(codes, axis=0, dtype=np.uint32))
    room = n_sites * np.repeat(fixed.errors(), sizes) * (1 + 1e-9)
    assert np.all(np.abs(found - parts.sum(axis=0)) <= room + 1e-12 * np.abs(found))


@quick
@given(bounds, st.integers(1, 200))
def test_scales_are_powers_of_two_and_use_the_range(bounds, n_sites):
    fixed = FixedPoint.for_bounds([1] * len(bounds), bounds, n_sites)
    for scale, bound in zip(fixed.scales, bounds, strict=True):
        assert np.frexp(scale)[0] == 0.5
        assert scale * bound <= largest_code(n_sites) < 2 * scale * bound


@quick
@given(st.integers(1, 10**6), st.integers(-(2**31), 2**31))
def test_whole_numbers_are_exact_or_refused(n_sites, value):
    fixed = FixedPoint((1,), (1.0,))
    if abs(value) * n_sites < 2**31:
        code = fixed.encode(np.array([float(value)]), n_sites)
        total = np.array([int(code[0]) * n_sites % 2**32], dtype=np.uint32)
        assert fixed.decode(total).tolist() == [value * n_sites]
    else:
        with pytest.raises(ValueError, match="nothing was sent"):
            fixed.encode(np.array([float(value)]), n_sites)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, -17.0])
def test_what_does_not_fit_is_named_and_never_clipped(value):
    fixed = FixedPoint.for_bounds((2, 3), (1.0, 10.0), 4)
    vector = np.zeros(5)
    vector[3] = value
    with pytest.raises(ValueError, match=r"entry 3 of the vector is .* at most 16 per site"):
        fixed.encode(vector, 4)


def test_wrong_sizes_are_named():
    fixed = FixedPoint((2,), (1.0,))
    with pytest.raises(ValueError, match="a vector of 2 entries"):
        fixed.encode(np.zeros(3), 1)
    with pytest.raises(Refused, match=r"sum: expected uint32 \[2\]"):
        fixed.decode(np.zeros(2))
    with pytest.raises(Refused, match=r"sum: expected uint32 \[2\]"):
        fixed.decode(np.zeros(3, dtype=np.uint32))
    with pytest.raises(ValueError, match="n_sites"):
        largest_code(0)
    with pytest.raises(ValueError, match="cannot hold"):
        largest_code(2**31)


@pytest.mark.parametrize("kind", ["cosine", "hellinger"])
@pytest.mark.parametrize("n_sites", [3, 100])
def test_honest_totals_fit_into_the_public_scales(kind, n_sites):
    """Also where all rows of a site are the same one, which makes every sum as large as can be."""
    rng = np.random.default_rng(0)
    phi = fedran.RandomFeatures(20, 512, kind=kind, seed=1)
    Z = np.abs(rng.standard_normal((64, 20)))
    Z[32:] = Z[0]
    H, y = phi(Z), np.repeat([0, 1], 32)
    for omega in (blind_omega(512, 32, 1), None):
        total = sketch_sums(H, y, (0, 1), omega)
        fixed = sketch_fixed_point(phi.fingerprint, 2, total.width, most_rows=64, n_sites=n_sites)
        vector = total.vector()
        decoded = fixed.decode(fixed.encode(vector, n_sites))
        assert np.all(np.abs(decoded - vector) <= np.repeat(fixed.errors(), fixed.sizes))
        with pytest.raises(ValueError, match="use fewer rows"):
            fixed.encode(2000 * vector, n_sites)


def test_rounding_hardly_changes_the_summary():
    """A sum over five sites in 32 bits: the Gram moves by less than the smallest ridge."""
    rng = np.random.default_rng(0)
    phi = fedran.RandomFeatures(30, 400, seed=1)
    spread = 1 / np.sqrt(1 + np.arange(30))
    y = rng.integers(0, 4, 1500)
    H = phi(rng.standard_normal((4, 30))[y] / 2 + 2 * spread * rng.standard_normal((1500, 30)))
    for omega in (blind_omega(400, 60, 1), None):
        parts = [sketch_sums(H[i::5], y[i::5], range(4), omega) for i in range(5)]
        width = parts[0].width
        fixed = sketch_fixed_point(phi.fingerprint, 4, width, most_rows=4096, n_sites=5)
        codes = np.sum([fixed.encode(p.vector(), 5) for p in parts], axis=0, dtype=np.uint32)
        total = SketchSums.from_vector(fixed.decode(codes), range(4), 400, width)
        rounded = sketch_to_summary(total, omega, rounding=sketch_rounding(fixed, 5)).validate()
        exact = sketch_to_summary(sum(parts), omega)
        change = np.linalg.norm(rounded.gram() - exact.gram(), 2)
        assert change < SKETCH_BASE * exact.accounts.mean_row_energy
        true = np.linalg.norm(rounded.gram() - H.T @ H, 2)
        assert true <= rounded.accounts.eps_G


@quick
@given(st.integers(1, 4), st.integers(1, 100), st.integers(0, 2**32 - 1))
def test_few_rows_at_coarse_scales_give_a_valid_summary(rows, n_sites, seed):
    """One row per class has no within-class part, so rounding alone decides the sign of it."""
    rng = np.random.default_rng(seed)
    phi = fedran.RandomFeatures(6, 64, seed=1)
    H, y = phi(rng.standard_normal((rows, 6))), list(range(rows))
    for omega in (blind_omega(64, 8, 1), None):
        found = sketch_sums(H, y, range(5), omega)
        fixed = sketch_fixed_point(
            phi.fingerprint, 5, found.width, most_rows=2**17, n_sites=n_sites
        )
        vector = fixed.decode(fixed.encode(found.vector(), n_sites))
        total = SketchSums.from_vector(vector, range(5), 64, found.width)
        rounding = sketch_rounding(fixed, n_sites)
        summary = sketch_to_summary(total, omega, phi.fingerprint, rounding=rounding).validate()
        assert summary.rank == 0
        assert summary.classes == tuple(y)
        agg = fedran.Aggregator(64, fingerprint=phi.fingerprint)
        assert agg.absorb(summary, client="sum", task="t")


def test_features_without_a_bound_are_refused():
    phi = fedran.RandomFeatures(4, 8, kind="relu")
    with pytest.raises(ValueError, match="rows of bounded norm"):
        row_bounds(phi.fingerprint)
