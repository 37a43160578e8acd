"""The summary rebuilt from the totals of a secure sum, against dense float64 matrices."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedran
from fedran.core.errors import Refused
from fedran.core.private.sketch_sums import SketchSums, blind_omega, sketch_sums
from fedran.core.solve.nystrom import RoundingErrors, sketch_ridge, sketch_to_summary
from fedran.core.solve.ridge import Ridge
from fedran.core.sums.accounts import Accounts
from helpers.core.reference import features, onehot, quick, spectral
from helpers.core.samples import CLASSES, dtypes, pooled, seeds, sites


def within(H, y):
    """The Gram of the rows minus their class means."""
    Y = onehot(y, CLASSES)
    B, n = H.T @ Y, np.maximum(Y.sum(0), 1)
    return H.T @ H - (B / n) @ B.T


def rebuilt(summary):
    F = summary.factor.astype(np.float64)
    return F @ F.T


@quick
@given(sites(), st.integers(0, 6), seeds, dtypes)
def test_a_sketch_as_wide_as_the_rank_rebuilds_the_gram(made, extra, seed, dtype):
    M, parts = made
    H, y = pooled(parts)
    H = H.astype(dtype).astype(np.float64)
    W = within(H, y)
    rank = int(np.linalg.matrix_rank(W, tol=1e-9 * (1 + np.trace(H.T @ H))))
    width = min(M, max(1, rank + extra))
    room = 1e-4 * (1 + (H**2).sum())
    for omega in (blind_omega(M, width, seed), None):
        total = sum(sketch_sums(H.astype(dtype), y, CLASSES, omega) for H, y in parts)
        summary = sketch_to_summary(total, omega).validate()
        error = spectral(rebuilt(summary) - W)
        assert error <= summary.accounts.eps_G + 0.01 * room
        if omega is not None:
            core = np.linalg.eigvalsh(omega.T.astype(np.float64) @ W @ omega)[::-1]
            if rank and core[rank - 1] < 1e-3 * spectral(W):
                continue  # rounding decides what the smallest directions hold
        assert error <= room
        assert summary.accounts.cut <= room


@quick
@given(sites(), st.integers(1, 6), seeds)
def test_the_accounts_of_a_narrow_sketch_are_true(made, width, seed):
    M, parts = made
    H, y = pooled(parts)
    omega = blind_omega(M, min(width, M), seed)
    total = sum(sketch_sums(H, y, CLASSES, omega) for H, y in parts)
    summary = sketch_to_summary(total, omega).validate()
    W, found, acc = within(H, y), rebuilt(summary), summary.accounts
    room = 1e-5 * (1 + acc.energy)
    assert spectral(found - W) <= acc.eps_G + room
    assert np.linalg.norm(found - W) <= acc.eps_G_fro + room
    assert np.linalg.eigvalsh(W - found)[0] >= -room
    np.testing.assert_allclose(acc.cut, np.trace(W - found), rtol=0, atol=room)
    assert (acc.n_rows, acc.parts) == (len(y), min(len(y), 1))
    assert acc.energy == pytest.approx((H**2).sum())
    assert summary.counts == tuple(y.count(c) for c in summary.classes)
    assert summary.classes == tuple(c for c in CLASSES if c in y)
    # Nystrom's formula with a pseudo-inverse, where it is well determined.
    S = W @ omega.astype(np.float64)
    core = omega.T.astype(np.float64) @ S
    if np.linalg.cond(core) < 1e4:
        expected = S @ np.linalg.inv((core + core.T) / 2) @ S.T
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * (1 + acc.energy))


@quick
@given(sites(), st.integers(1, 10), seeds, st.floats(1e-6, 1e-1))
def test_errors_of_the_size_that_rounding_states_stay_within_the_bounds(made, width, seed, error):
    M, parts = made
    H, y = pooled(parts)
    rng = np.random.default_rng(seed)
    for omega in (blind_omega(M, min(width, M), seed), None):
        exact = sum(sketch_sums(H, y, CLASSES, omega) for H, y in parts)
        vector = exact.vector()
        C, start = len(CLASSES), len(CLASSES) + 1
        noise = rng.uniform(-error, error, (len(parts), len(vector) - start)).sum(axis=0)
        present = np.repeat([c in y for c in CLASSES], M)
        noise[: C * M] *= present
        vector[start:] += noise
        total = SketchSums.from_vector(vector, CLASSES, M, exact.width)
        summary = sketch_to_summary(total, omega, rounding=RoundingErrors(len(parts), error, error))
        acc = summary.validate().accounts
        assert np.linalg.norm(summary.gram() - H.T @ H, 2) <= acc.eps_G + 1e-5 * (1 + acc.energy)
        present = onehot(y, summary.classes)
        assert np.linalg.norm(summary.class_sums - H.T @ present) <= acc.eps_B + 1e-9


def test_small_eigenvalues_do_not_amplify_errors():
    """Rows of rank 8 under a sketch of 40 columns: 32 directions of the core are errors alone."""
    rng = np.random.default_rng(0)
    M, n = 120, 400
    H = rng.standard_normal((n, 8)) @ rng.standard_normal((8, M))
    y = rng.choice(CLASSES, n).tolist()
    omega, error = blind_omega(M, 40, 1), 1e-3
    total = sketch_sums(H, y, CLASSES, omega)
    noisy = SketchSums(
        total.sums, total.energy, total.sketch + rng.uniform(-error, error, total.sketch.shape)
    )
    summary = sketch_to_summary(noisy, omega, rounding=RoundingErrors(1, 0.0, error))
    W, Y = within(H, y), onehot(y, CLASSES)
    S = noisy.sketch - (H.T @ Y / Y.sum(0)) @ (H.T @ Y).T @ omega
    core = omega.T @ S
    naive = S @ np.linalg.inv((core + core.T) / 2) @ S.T
    assert spectral(rebuilt(summary) - W) < 50 * error * np.sqrt(M) < spectral(naive - W)


def test_an_aggregator_absorbs_the_rebuilt_summary_and_solves_as_with_the_rows():
    rng = np.random.default_rng(0)
    phi = fedran.RandomFeatures(6, 40, seed=1)
    Z, y = rng.standard_normal((90, 6)), rng.choice(CLASSES, 90)
    H = phi(Z)
    omega = blind_omega(40, 40, 3)
    total = sum(sketch_sums(H[i::3], y[i::3], CLASSES, omega) for i in range(3))
    heads = []
    for s in (sketch_to_summary(total, omega, phi.fingerprint), exact_summary(H, y, phi)):
        agg = fedran.Aggregator(40, fingerprint=phi.fingerprint)
        assert agg.absorb(s, client="all", task="t")
        heads.append(agg.solve(Ridge.relative(0.05)))
    np.testing.assert_allclose(heads[0].weights, heads[1].weights, atol=1e-4)


def exact_summary(H, y, phi):
    return fedran.summarize(H, y, None, fingerprint=phi.fingerprint)


def test_the_ridge_of_a_sketch_grows_with_the_mean_eigenvalue_of_what_it_misses():
    one = Accounts(n_rows=400, parts=1, energy=8000.0, cut=800.0)
    rule = sketch_ridge(64)
    assert rule.value(one) == pytest.approx(0.03 * 20 + 4 * 800 / 64)
    assert rule.value(one + one) == pytest.approx(rule.value(one))


def test_torch_gives_what_numpy_gives():
    rng = np.random.default_rng(0)
    H, y = features(rng, 50, 16).astype(np.float32), rng.choice(CLASSES, 50)
    for omega in (blind_omega(16, 6, 0), None):
        numpy_total = sketch_sums(H, y, CLASSES, omega)
        torch_omega = None if omega is None else torch.from_numpy(omega)
        torch_total = sketch_sums(torch.from_numpy(H), y, CLASSES, torch_omega)
        np.testing.assert_allclose(torch_total.vector(), numpy_total.vector(), rtol=1e-5, atol=1e-4)
        one = sketch_to_summary(numpy_total, omega)
        two = sketch_to_summary(torch_total, torch_omega, device="cpu").to(None)
        np.testing.assert_allclose(two.gram(), one.gram(), atol=1e-3)
        assert two.accounts.cut == pytest.approx(one.accounts.cut, abs=1e-3)


def test_no_row_at_all_is_an_empty_summary():
    omega = blind_omega(5, 2, 0)
    total = sketch_sums(np.zeros((0, 5)), [], CLASSES, omega)
    summary = sketch_to_summary(total, omega).validate()
    assert (summary.rank, summary.classes, summary.accounts.n_rows) == (0, (), 0)


@pytest.mark.parametrize(
    ("where", "value", "field"),
    [
        (0, 1.5, "counts"),
        (0, -1.0, "counts"),
        (0, 0.0, "class_sums"),
        (3, -1.0, "energy"),
        (3, np.nan, "sketch_sums"),
        (3, 1.0, "class_sums"),
        (4, 1e6, "class_sums"),
        (-1, 1e6, "sketch"),
        (3, 200.0, None),
    ],
)
@pytest.mark.parametrize("width", [3, None])
def test_impossible_sums_are_refused(where, value, field, width):
    rng = np.random.default_rng(0)
    H, y = features(rng, 30, 6), rng.choice(CLASSES[:2], 30)
    omega = None if width is None else blind_omega(6, width, 0)
    vector = sketch_sums(H, y, CLASSES, omega).vector()
    vector[where] = value

    def made():
        total = SketchSums.from_vector(vector, CLASSES, 6, width)
        return sketch_to_summary(total, omega).validate()

    if field is None:  # more energy than the sketch shows is possible: it counts as cut
        assert made().accounts.cut > 0
        return
    with pytest.raises(Refused, match=field):
        made()


def test_sketches_by_different_matrices_are_refused():
    rng = np.random.default_rng(0)
    H, y = features(rng, 200, 30), rng.choice(CLASSES, 200)
    ours, other = blind_omega(30, 10, 0), blind_omega(30, 10, 1)
    total = sketch_sums(H, y, CLASSES, ours) + sketch_sums(H, y, CLASSES, other)
    with pytest.raises(Refused, match="same Omega"):
        sketch_to_summary(total, ours)


def test_an_omega_that_does_not_fit_is_named():
    total = sketch_sums(np.ones((2, 5)), ["ant", "ant"], CLASSES, blind_omega(5, 2, 0))
    with pytest.raises(ValueError, match="as the sketch"):
        sketch_to_summary(total, blind_omega(5, 3, 0))
    with pytest.raises(ValueError, match="independent"):
        sketch_to_summary(total, np.ones((5, 2)))
