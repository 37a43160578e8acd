from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedran
from fedran.core._linalg import blas
from fedran.core.solve.ridge import Ridge, log_evidence, solve_gram, solve_stack, spectral_norm
from fedran.core.sums.accounts import Accounts
from helpers.core.reference import quick, spectral

problems = st.tuples(
    st.integers(1, 20), st.integers(1, 25), st.integers(1, 4), st.integers(0, 2**32 - 1)
)
kinds = st.sampled_from([np.asarray, torch.as_tensor])


def problem(M, w, C, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((M, w)), rng.standard_normal((M, C))


@quick
@given(problems, st.floats(1e-3, 1e3), kinds, st.sampled_from([2, 512]))
def test_both_solvers_give_the_dense_ridge(size, lam, kind, block):
    F, B = problem(*size)
    G = F @ F.T
    W = np.linalg.solve(G + lam * np.eye(len(G)), B)
    lower = np.asfortranarray(np.tril(G)) if kind is np.asarray else G
    before, blas.BLOCK = blas.BLOCK, block
    try:
        solutions = [
            solve_stack(kind(F), kind(B), lam),
            solve_gram(kind(lower), kind(B), lam),
        ]
    finally:
        blas.BLOCK = before
    values = np.linalg.eigvalsh(G)
    for s in solutions:
        np.testing.assert_allclose(s.weights, W, rtol=1e-6, atol=1e-8 * np.abs(B).max() / lam)
        assert s.residual <= 1e-9 * np.linalg.norm(B) * (1 + values[-1] / lam)
        assert 0.8 * values[-1] <= s.norm <= values[-1] * (1 + 1e-6)
        assert s.effective_rank == pytest.approx(np.sum(values) ** 2 / np.sum(values**2))
        assert s.outside == 0.0
        assert s.route.endswith("Cholesky in float64")


@quick
@given(problems, st.integers(1, 9), st.floats(1e-2, 1e3), kinds)
def test_leverages_of_a_stack_are_the_dense_ones(size, n, lam, kind):
    F, B = problem(*size)
    H = np.random.default_rng(size[-1]).standard_normal((n, len(F)))
    inverse = np.linalg.inv(F @ F.T + lam * np.eye(len(F)))
    found = solve_stack(kind(F), kind(B), lam, kind(H)).leverages
    expected = np.einsum("ij,jk,ik->i", H, inverse, H)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9 * np.sum(H**2) / lam)


@quick
@given(problems, st.sampled_from([np.float32, np.float64]), st.integers(0, 3))
def test_the_evidence_is_the_gaussian_density_of_the_rows(size, dtype, shift):
    """And, at a fixed variance, the sum of predictive densities of one row after the other."""
    rows = np.random.default_rng(size[3]).standard_normal((size[1], size[0]))
    H = rows.astype(dtype).astype(float)
    Y = np.random.default_rng(shift).standard_normal((len(H), size[2]))
    lams, n = [0.3, 2.0, 500.0], len(H)
    found = log_evidence((H.T @ H).astype(dtype), H.T @ Y, np.sum(Y**2, axis=0), n, lams)
    for lam, value in zip(lams, found, strict=True):
        K = H @ H.T + lam * np.eye(n)
        expected = -0.5 * size[2] * np.linalg.slogdet(K)[1]
        for y in Y.T:
            quadratic = y @ np.linalg.solve(K, y)
            expected -= 0.5 * n * np.log(quadratic)
            order = np.random.default_rng(shift).permutation(n)
            steps = [one_step(K, y, order[:i], order[i]) for i in range(n)]
            density = -0.5 * (quadratic + np.linalg.slogdet(2 * np.pi * K)[1])
            assert sum(steps) == pytest.approx(density, rel=1e-6, abs=1e-6)
        assert value == pytest.approx(expected, rel=1e-3 if dtype is np.float32 else 1e-8, abs=1e-2)


def one_step(K, y, seen, row):
    """The log density of y[row] after the rows that were seen, by the kernel K."""
    weights = np.linalg.solve(K[np.ix_(seen, seen)], K[seen, row])
    mean, variance = weights @ y[seen], K[row, row] - weights @ K[seen, row]
    return -0.5 * ((y[row] - mean) ** 2 / variance + np.log(2 * np.pi * variance))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("r", [1, 2, 64, 65, 66, 129, 577, 700])
def test_a_wide_gram_has_the_evidence_and_the_best_ridge_of_its_eigenvalues(r, dtype):
    rng = np.random.default_rng(r)
    n, noise = int(rng.integers(r // 2 + 2, 2 * r + 4)), rng.standard_normal
    H = noise((n, r)) * np.logspace(0, -3, r) + rng.random(r)
    Y = H @ noise((r, 3)) + rng.uniform(0.1, 5) * noise((n, 3))
    G, B, squares = (H.T @ H).astype(dtype), H.T @ Y, np.sum(Y**2, axis=0)
    lower = np.asfortranarray(np.tril(G) + np.triu(np.full_like(G, np.nan), 1))
    lams = [0.03 * times * np.trace(G) / n for times in Ridge.SEARCHED]
    found = np.array(log_evidence(lower, B, squares, n, lams))
    values, U = np.linalg.eigh(H.T @ H)
    s, rotated = np.maximum(values, 0), (U.T @ B) ** 2
    expected = []
    for lam in lams:
        left = (squares - np.sum(rotated / (s + lam)[:, None], axis=0)) / lam
        log_det = np.sum(np.log(s + lam)) + (n - r) * np.log(lam)
        expected.append(-0.5 * (n * np.sum(np.log(left)) + 3 * log_det))
    np.testing.assert_allclose(found, expected, rtol=1e-9 if dtype is np.float64 else 1e-3)
    assert abs(np.argmax(found) - np.argmax(expected)) <= (dtype is np.float32)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
class TestFallbacks:
    def test_a_float32_breakdown_moves_to_float64(self, kind):
        G = np.full((3, 3), 2.0**24, dtype=np.float32)  # 2^24 + 1e-3 = 2^24 in float32
        B = np.arange(6.0).reshape(3, 2)
        s = solve_gram(kind(G), kind(B), 1e-3)
        assert "Cholesky in float32 failed (pivot" in s.route
        assert s.route.endswith("Cholesky in float64")
        W = np.linalg.solve(G.astype(float) + 1e-3 * np.eye(3), B)
        np.testing.assert_allclose(s.weights, W, atol=1e-5 * np.abs(W).max())

    def test_an_overflow_in_float32_moves_to_float64(self, kind):
        laplacian = 2 * np.eye(20) - np.eye(20, k=1) - np.eye(20, k=-1)
        G = (1e-37 * laplacian).astype(np.float32)  # G^-1 1 reaches 5.5e38
        s = solve_gram(kind(G), kind(np.ones((20, 1))), 1e-44)
        assert "triangular solve gave no finite result" in s.route
        W = np.linalg.solve(1e37 * G.astype(float), np.ones((20, 1)))
        np.testing.assert_allclose(np.asarray(s.weights) / 1e37, W, rtol=1e-4)

    def test_an_indefinite_gram_is_solved_on_its_positive_part(self, kind):
        Q = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
        G = (Q * [4.0, 1.0, -2.0]) @ Q.T
        B = np.eye(3)
        s = solve_gram(kind(G), kind(B), 0.5)
        assert "Cholesky in float64 failed (pivot 1 of 3 is not positive)" in s.route
        assert s.route.endswith("eigenvalues, those below rounding zeroed")
        np.testing.assert_allclose(s.weights, (Q / [4.5, 1.5, 0.5]) @ Q.T, atol=1e-12)
        assert s.residual == pytest.approx(2 / 0.5)  # what was zeroed is in the residual


def test_a_residual_that_is_not_finite_is_no_answer():
    G = np.full((2, 2), 1e300, order="F")
    with np.errstate(all="ignore"):
        s = solve_gram(G, np.ones((2, 1)), 1e-300)
    assert np.isfinite(s.weights).all()


class TestRule:
    def test_the_default_grows_with_the_cut(self):
        rule = Ridge()
        rows = Accounts(n_rows=10, energy=1000.0)
        assert rule.value(rows) == pytest.approx(0.03 * 100)
        cut = replace(rows, cut=500.0, parts=2)
        assert rule.value(cut) == pytest.approx((0.03 + 0.07 * 0.5 * 5**0.5) * 100)

    @quick
    @given(st.floats(1e-6, 1e6), st.floats(0, 1), st.floats(0.1, 10))
    def test_relative_rules_scale_with_the_features(self, energy, f, scale):
        a = Accounts(n_rows=7, energy=energy, cut=f * energy)
        b = Accounts(n_rows=7, energy=scale * energy, cut=scale * f * energy)
        for rule in (Ridge(), Ridge.relative(0.3), Ridge(base=0.01)):
            if f > 0.01:
                assert rule.value(b) == pytest.approx(scale * rule.value(a))

    def test_parse_accepts_none_numbers_and_ridges(self):
        assert Ridge.parse(None) == Ridge()
        assert Ridge.parse(Ridge.relative(2.0)).value(Accounts(n_rows=2, energy=4.0)) == 4.0
        assert Ridge.absolute(3.0).value(Accounts(n_rows=1, energy=1e9)) == 3.0

    @quick
    @given(st.floats(1e-3, 1e3), st.floats(0, 1), st.sampled_from([float, np.float32]))
    def test_a_number_multiplies_the_default_rule(self, times, f, kind):
        accounts = Accounts(n_rows=9, energy=90.0, cut=90.0 * f, parts=2)
        expected = float(kind(times)) * Ridge().value(accounts)
        assert Ridge.parse(kind(times)).value(accounts) == pytest.approx(expected)

    @pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
    def test_the_ridge_must_be_positive_and_finite(self, bad):
        for make in (Ridge.absolute, Ridge.relative, Ridge.parse):
            with pytest.raises(ValueError, match="ridge"):
                make(bad)

    @pytest.mark.parametrize("bad", [{"base": -1}, {"slope": np.nan}, {"base": 0, "slope": 0}])
    def test_bad_rules_are_refused(self, bad):
        with pytest.raises(ValueError, match="ridge"):
            Ridge(**bad)


@quick
@given(st.integers(1, 12), st.integers(0, 99))
def test_a_lower_triangle_in_any_layout_is_enough(M, seed):
    F = np.random.default_rng(seed).standard_normal((M, M))
    G, B = F @ F.T, np.eye(M)
    expected = np.linalg.inv(G + 3.0 * np.eye(M))
    for lower in (np.asfortranarray(np.tril(G)), np.ascontiguousarray(np.tril(G))):
        s = solve_gram(lower, B, 3.0)
        np.testing.assert_allclose(s.weights, expected, atol=1e-9)
        assert s.norm <= spectral(G) * (1 + 1e-6)
        assert s.norm >= 0.8 * spectral(G)


@pytest.mark.parametrize("ridge", ["x", True, [1.0]])
def test_a_ridge_is_a_number_or_a_rule(ridge):
    agg = fedran.Aggregator(2)
    agg.absorb(fedran.summarize(np.eye(2), [0, 1]), client="a", task="t")
    with pytest.raises(TypeError, match="a number, a Ridge or None"):
        agg.solve(ridge)


def test_the_norm_of_a_gram_is_right_where_its_squares_are_out_of_the_range_of_float32():
    G = np.diag(np.array([1.0, 2.0, 7.0], dtype=np.float32) * np.float32(1e30))
    assert spectral_norm(G) == pytest.approx(7e30, rel=1e-3)
