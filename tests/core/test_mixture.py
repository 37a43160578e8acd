"""Mixtures: what they keep exactly, what is drawn from them, and what they may not claim."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedran.core import mixture as module
from fedran.core.condense import condense
from fedran.core.mixture import Mixture
from helpers.core.reference import quick
from helpers.core.samples import D, phi_of, rows, with_part

KINDS = ("cosine", "hellinger", "relu")


@quick
@given(
    st.sampled_from(KINDS), st.booleans(), st.integers(1, 8), st.integers(1, 6), st.integers(0, 20)
)
def test_groups_keep_means_counts_and_squared_norms_of_each_class(
    kind, bias, group_size, min_group, seed
):
    phi = phi_of(kind, bias=bias)
    Z, y = rows(50, seed=seed)
    m = condense(Z, y, phi, group_size, min_group, directions=3)
    X = np.asarray(phi.prepare(Z), dtype=np.float64)
    counted = {c: y.count(c) for c in sorted(set(y))}
    assert m.withheld == {c: n for c, n in counted.items() if n < min_group}
    assert dict(zip(m.classes, m.counts, strict=True)) == {
        c: n for c, n in counted.items() if n >= min_group
    }
    for part in m.parts:
        assert part.counts.min() >= min_group
        for code, label in enumerate(part.classes):
            mine, own = X[np.array(y) == label], part.codes == code
            n, mu, s = part.counts[own], part.means[own].astype(np.float64), part.spreads[own]
            np.testing.assert_allclose(n @ mu, mine.sum(axis=0), rtol=1e-4, atol=1e-5)
            energy = n @ (np.sum(mu**2, axis=1) + s)
            assert energy == pytest.approx(np.sum(mine**2), rel=1e-5)
    assert m.energy == pytest.approx(sum(np.sum(X[i] ** 2) for i in range(50) if y[i] in m.classes))
    assert m.validate() is m


def test_directions_are_the_leading_ones_of_the_residuals():
    rng = np.random.default_rng(1)
    phi = phi_of("relu")
    Z = rng.standard_normal((400, D)) * np.array([5.0, 3.0, 1.0, 0.1, 0.1, 0.1, 0.1])
    m = condense(Z, [0] * 400, phi, group_size=400, min_group=1, directions=2)
    values, vectors = np.linalg.eigh(np.cov(Z.T, bias=True))
    part = m.parts[0]
    np.testing.assert_allclose(part.shares, values[::-1][:2] / values.sum(), rtol=1e-4)
    overlap = np.abs(part.directions @ vectors[:, ::-1][:, :2])
    np.testing.assert_allclose(overlap, np.eye(2), atol=1e-3)
    assert part.tail == pytest.approx(values[:-2].mean() / values.sum(), rel=1e-3)


@quick
@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_few_rows_give_few_directions(n, min_group, seed):
    """With as many as the residuals have, single rows are found in their span."""
    rng = np.random.default_rng(seed)
    Z, y = np.abs(rng.standard_normal((n, D))), rng.integers(0, 2, n)
    for part in condense(Z, y, phi_of("hellinger"), min_group=min_group).parts:
        assert min_group * len(part.shares) <= part.counts.sum() - len(part.counts)


def test_drawn_rows_follow_the_model():
    rng = np.random.default_rng(2)
    Z = rng.standard_normal((250, D)) * np.array([3.0, 1.0, 1.0, 0.3, 0.3, 0.3, 0.3]) + 2.0
    m = condense(Z, [0] * 250, phi_of("relu"), 250, 1, directions=D)
    total, second, mean = 0.0, 0.0, 0.0
    for seed in range(40):  # another digest, other draws
        draws = list(replace(m, digest=f"{seed:032x}" * 2).draw())
        X, w = np.concatenate([d.rows for d in draws]), np.concatenate([d.weights for d in draws])
        total, mean, second = total + w.sum(), mean + w @ X, second + (X * w[:, None]).T @ X
    assert total == pytest.approx(40 * 250)
    np.testing.assert_allclose(mean / total, Z.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(second / total, Z.T @ Z / 250, atol=0.4)


@quick
@given(st.integers(1, 5), st.integers(1, 30), st.integers(0, 20))
def test_drawn_rows_have_the_mean_and_the_weight_of_their_group(min_group, max_rows, seed):
    Z, y = rows(40, seed=seed)
    m = condense(Z, y, phi_of(), 5, min_group, directions=2)
    draws = list(m.draw(max_rows))
    part = m.parts[0]
    X, w = np.concatenate([d.rows for d in draws]), np.concatenate([d.weights for d in draws])
    codes = np.concatenate([d.codes for d in draws])
    for code in range(len(part.classes)):
        own = part.codes == code
        assert w[codes == code].sum() == pytest.approx(part.counts[own].sum())
        expected = part.counts[own] @ part.means[own]
        np.testing.assert_allclose(w[codes == code] @ X[codes == code], expected, atol=1e-4)
    whole = np.concatenate([d.rows for d in m.draw(10**6)])
    assert np.array_equal(X, whole)  # the draws do not depend on the size of the blocks


def test_rows_without_a_label_are_left_out():
    Z, y = rows(30)
    with_gaps = [label if i % 3 else None for i, label in enumerate(y)]
    kept = [i for i in range(30) if i % 3]
    a = condense(Z, with_gaps, phi_of(), 3, 1)
    b = condense(Z[kept], [y[i] for i in kept], phi_of(), 3, 1)
    assert a.content_digest() == b.content_digest()


def test_rows_that_are_not_finite_are_named():
    Z, y = rows()
    Z[7, 2] = np.nan
    with pytest.raises(ValueError, match="row 7"):
        condense(Z, y, phi_of())
    with pytest.raises(TypeError, match="fingerprint"):
        Mixture((), None)


def test_a_message_of_many_large_groups_does_not_mean_many_draws(monkeypatch):
    monkeypatch.setattr(module, "MAX_DRAWN_ROWS", 500)
    phi = phi_of()
    m = condense(*rows(300), phi, group_size=6, min_group=2)
    counts = np.full(m.n_groups, 10**6)
    forged = with_part(m, counts=counts)
    blocks = list(forged.draw())
    assert sum(len(b.rows) for b in blocks) <= 500
    assert sum(b.weights.sum() for b in blocks) == pytest.approx(counts.sum())
    monkeypatch.setattr(module, "MAX_DRAWN_ROWS", 1)  # two per group are always drawn
    assert sum(len(b.rows) for b in forged.draw()) == 2 * m.n_groups
    monkeypatch.setattr(module, "MAX_DRAWN_ROWS", 2 * 300)  # two per row: nothing changes
    assert sum(len(b.rows) for b in m.draw()) == 600


@pytest.mark.parametrize("scale", [1e-35, 1e-17, 1e20, 1e60])
def test_rows_whose_squares_are_out_of_the_range_of_float32_are_named(scale):
    Z, y = rows(30)
    with pytest.raises(ValueError, match="rescale the features"):
        condense(scale * Z.astype(np.float64), y, phi_of("relu"))
    m = condense(scale * Z.astype(np.float64), y, phi_of("cosine"))
    assert m.energy == pytest.approx(m.n_rows, rel=1e-5)
