"""Proposition 2 and Eckart-Young: leading factors are the best of their rank, in every route."""

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedran.core._linalg import truncation as compress
from fedran.core._linalg.truncation import (
    check_rank,
    eigh,
    leading,
    leading_of_gram,
    square_factor,
)
from helpers.core.reference import ROUNDING, best_rank, frobenius, quick, spectral

sizes = st.tuples(st.integers(1, 14), st.integers(1, 24), st.integers(0, 2**32 - 1))


def matrix(M, w, seed, decay=0.2):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((M, w)) * np.exp(-decay * np.arange(w))


def steep(M, w, ratio, dtype=np.float32):
    """Singular values fall geometrically from 1 to ``ratio``."""
    rng = np.random.default_rng(0)
    U = np.linalg.qr(rng.standard_normal((M, w)))[0]
    V = np.linalg.qr(rng.standard_normal((w, w)))[0]
    return ((U * np.geomspace(1, ratio, w)) @ V.T).astype(dtype)


def assert_best_of_rank(A, rank, result, room=ROUNDING):
    """F F' = T_rank(A A'), and the loss is the residual in three norms."""
    S = A.astype(np.float64) @ A.astype(np.float64).T
    expected, values = best_rank(S, rank)
    scale = values[0] or 1.0
    F = result.factor.astype(np.float64)
    assert F.shape[1] <= rank
    rest = values[rank:]
    assert result.loss.spectral == pytest.approx(rest[0] if rest.size else 0, abs=room * scale)
    assert result.loss.frobenius == pytest.approx(np.linalg.norm(rest), abs=room * scale)
    assert result.loss.trace == pytest.approx(rest.sum(), abs=room * scale * len(S))
    assert result.energy == pytest.approx(np.trace(S), rel=room)
    residual = S - F @ F.T
    # Ties make T_r ambiguous; its residual norms are not.
    assert spectral(residual) == pytest.approx(spectral(S - expected), abs=room * scale)
    assert frobenius(residual) == pytest.approx(frobenius(S - expected), abs=room * scale)


@quick
@given(sizes, st.integers(1, 26))
def test_leading_is_the_best_approximation_of_its_rank(size, rank):
    A = matrix(*size)
    assert_best_of_rank(A, rank, leading(A, rank))


@quick
@given(sizes, st.integers(1, 26))
def test_tensors_and_float32_agree_with_float64(size, rank):
    A = matrix(*size)
    single = torch.as_tensor(A.astype(np.float32))
    assert_best_of_rank(A, rank, np_result(leading(torch.as_tensor(A), rank)))
    assert_best_of_rank(A, rank, np_result(leading(single, rank)), room=1e-5)
    assert_best_of_rank(A, rank, leading(A.astype(np.float32), rank), room=1e-5)


def np_result(result):
    return compress.Leading(result.factor.numpy(), result.loss, result.energy, result.route)


@quick
@given(sizes)
def test_everything_is_kept_without_a_rank(size):
    A = matrix(*size)
    result = leading(A, None)
    np.testing.assert_allclose(result.factor @ result.factor.T, A @ A.T, atol=1e-9)
    assert result.loss.trace <= ROUNDING * result.energy


@quick
@given(sizes)
def test_square_factor_loses_nothing(size):
    A = matrix(*size)
    wide = np.concatenate([A, matrix(A.shape[0], A.shape[0] + 3, 1)], axis=1)
    for square in (square_factor(wide), square_factor(torch.as_tensor(wide)).numpy()):
        assert square.shape == (len(A), len(A))
        np.testing.assert_allclose(square @ square.T, wide @ wide.T, atol=1e-9)


@quick
@given(sizes, st.integers(1, 16))
def test_leading_of_a_gram_is_leading_of_its_factor(size, rank):
    A = matrix(*size)
    result = leading_of_gram(A @ A.T, rank)
    assert_best_of_rank(A, rank, result)
    assert leading_of_gram(np.zeros((3, 3)), rank).factor.shape == (3, 0)


@quick
@given(st.integers(2, 12), st.integers(2, 12), st.integers(0, 99))
def test_a_rank_deficient_matrix_is_an_ordinary_case_in_float64(M, w, seed):
    A = matrix(M, 1, seed) @ matrix(1, w, seed)
    assert leading(A, None).route == "gram in float64"
    assert leading_of_gram(A @ A.T, None).factor.shape == (M, 1)


class TestRoutes:
    def test_few_of_many_columns_in_float32_go_by_ritz(self):
        A = matrix(40, 30, 0, decay=0.02).astype(np.float32)
        result = leading(A, 4)
        assert result.route == "ritz"
        assert_best_of_rank(A, 4, result, room=1e-5)

    @pytest.mark.parametrize("rank", [3, None])
    def test_a_steep_spectrum_in_float32_moves_to_float64(self, rank):
        A = steep(60, 12, 1e-5)
        result = leading(A, rank if rank != 3 else 12)
        assert result.route.startswith("gram in float64, after gram (spectrum too steep")
        gram = A.astype(float) @ A.T.astype(float)
        F = result.factor.astype(float)
        assert spectral(F @ F.T - gram) < 1e-6

    def test_a_steep_spectrum_is_no_case_for_ritz(self):
        A = steep(60, 30, 1e-12)
        result = leading(A, 6)
        assert "after ritz (spectrum too steep)" in result.route
        assert_best_of_rank(A, 6, result, room=1e-5)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_without_eigenvectors_the_svd_takes_over_and_says_so(self, monkeypatch, dtype):
        def fails(*_, **__):
            raise np.linalg.LinAlgError("no convergence")

        monkeypatch.setattr(scipy.linalg, "eigh", fails)
        A = matrix(40, 30, 0).astype(dtype)
        result = leading(A, 4)
        assert result.route.startswith("svd, after")
        assert "gram in float64 (no convergence)" in result.route
        assert_best_of_rank(A, 4, result, room=1e-5)

    def test_the_svd_takes_over_on_tensors_too(self, monkeypatch):
        import array_api_compat.torch as xp

        def fails(*_, **__):
            raise torch.linalg.LinAlgError("no convergence")

        monkeypatch.setattr(xp.linalg, "eigh", fails)
        result = leading(torch.as_tensor(matrix(8, 5, 0)), 2)
        assert result.route.startswith("svd, after")

    def test_when_every_route_fails_the_error_lists_them(self, monkeypatch):
        def fails(*_, **__):
            raise np.linalg.LinAlgError("no convergence")

        import array_api_compat.numpy as xp

        monkeypatch.setattr(scipy.linalg, "eigh", fails)
        monkeypatch.setattr(xp.linalg, "svd", fails)
        with pytest.raises(np.linalg.LinAlgError, match=r"of H succeeded: .*gram.*svd"):
            leading(matrix(8, 5, 0), 2, "H")

    @pytest.mark.parametrize("scale", [1e25, 1e-30])
    def test_float32_squares_out_of_range_are_taken_in_float64(self, scale):
        A = (matrix(8, 5, 0) * scale).astype(np.float32)
        result = leading(A, 2)
        assert "squares out of its range" in result.route
        unit = A.astype(np.float64) / scale
        assert result.energy / scale**2 == pytest.approx(np.sum(unit**2), rel=1e-6)
        kept = np.sum((result.factor.astype(np.float64) / scale) ** 2)
        lost = result.loss.trace / scale**2
        assert kept + lost == pytest.approx(np.sum(unit**2), rel=1e-6)

    @pytest.mark.parametrize("exponent", [-66, -70, -72, -74, -76, -80])
    def test_energy_is_right_where_float32_squares_are_subnormal(self, exponent):
        A = np.ldexp(1.0 + np.random.default_rng(0).random((8, 5)), exponent).astype(np.float32)
        result = leading(A, 2)
        energy = np.sum(A.astype(np.float64) ** 2)
        kept = np.sum(result.factor.astype(np.float64) ** 2)
        assert result.energy / energy == pytest.approx(1, rel=1e-4)
        assert (kept + result.loss.trace) / energy == pytest.approx(1, rel=1e-4)

    @pytest.mark.parametrize("scale", [1e200, 1e-200])
    def test_squares_beyond_float64_are_refused_in_words(self, scale):
        with np.errstate(over="ignore"), pytest.raises(ValueError, match="rescale the features"):
            leading(matrix(4, 3, 0) * scale, 2, "H")

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_a_column_that_is_not_finite_is_named(self, bad):
        A = matrix(4, 3, 0)
        A[1, 2] = bad
        with np.errstate(invalid="ignore"), pytest.raises(ValueError, match="first in row 2"):
            leading(A, 2, "H")


@pytest.mark.parametrize("rank", [0, -1, 0.5, np.nan, True, "3", [1], np.inf])
def test_bad_ranks_are_refused(rank):
    with pytest.raises(ValueError, match=r"rank must be .* got"):
        check_rank(rank)


@pytest.mark.parametrize("scale", [1e-13, 1.0, 1e12])
def test_the_loss_is_right_where_its_squares_are_out_of_the_range_of_float32(scale):
    A = (scale * matrix(40, 30, 0, decay=0.02)).astype(np.float32)
    found = leading(A, 3)
    assert found.route == "ritz"
    values = np.linalg.svd(A.astype(np.float64), compute_uv=False)[3:] ** 2
    assert found.loss.frobenius == pytest.approx(np.linalg.norm(values), rel=1e-4)
    assert found.loss.spectral == pytest.approx(values[0], rel=1e-4)


@pytest.mark.parametrize("n", [40, 600])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_values_are_accurate_and_vectors_orthonormal(n, share):
    H = np.maximum(0.1 * np.random.default_rng(0).standard_normal((n, 2 * n)) + 1.0, 0)
    K = (H @ H.T).astype(np.float32)  # one direction dominates, as with relu random features
    first = n - max(1, int(share * n))
    values, U = eigh(K, first)
    expected = scipy.linalg.eigvalsh(K.astype(np.float64))[first:]
    np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-9 * expected[-1])
    np.testing.assert_allclose(U.T @ U, np.eye(n - first), atol=1e-9)
