"""Positive definite solves borrow the upper triangle and give everything else back."""

import numpy as np
import pytest

from fedran.core._linalg.cholesky import cholesky, congruent, lower_product, solve_definite


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lam", [0.5, 1e-30])
def test_the_lower_triangle_survives_success_and_failure(dtype, lam):
    rng = np.random.default_rng(0)
    F = rng.standard_normal((40, 7)).astype(dtype)  # singular: a tiny ridge makes Cholesky fail
    G = np.asfortranarray(np.tril(F @ F.T))
    before = G.copy(order="F")
    _, _, route = solve_definite(G, rng.standard_normal((40, 3)), lam)
    assert np.array_equal(np.tril(G), before)
    assert ("failed" in route) == (lam == 1e-30)


@pytest.mark.parametrize("order", ["C", "F"])
def test_only_the_lower_triangle_is_read(order):
    rng = np.random.default_rng(1)
    F = rng.standard_normal((30, 50))
    B = rng.standard_normal((30, 2))
    G = np.array(F @ F.T, order=order)
    expected = np.linalg.solve(G + 2.0 * np.eye(30), B)
    G[np.triu_indices(30, 1)] = np.nan
    X, _, _ = solve_definite(G, B, 2.0)
    np.testing.assert_allclose(X, expected, rtol=1e-9)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("singular", [False, True])
def test_leverages_come_from_the_same_factorisation(library, dtype, singular):
    """In float32 Cholesky fails on the singular matrix, and eigenvalues take its place."""
    rng = np.random.default_rng(2)
    w, n = 25, 12
    rank, tiny = (6 if singular else w), (1e-7 if dtype == np.float32 else 1e-12)
    lam = tiny if singular else 0.5
    F = rng.standard_normal((w, rank)).astype(dtype)
    G, B = F @ F.T, rng.standard_normal((w, 3))
    H = (rng.standard_normal((n, rank)) @ F.T).astype(dtype)  # rows inside the range of G
    dense = np.linalg.pinv(G.astype(np.float64) + lam * np.eye(w), rcond=1e-6, hermitian=True)
    expected = np.sum(H @ dense * H, axis=1)
    alone, _, route = solve_definite(np.asfortranarray(G), B, lam)
    if library == "torch":
        torch = pytest.importorskip("torch")
        G, B, H = (torch.from_numpy(np.array(x)) for x in (G, B, H))
    else:
        G = np.asfortranarray(G)
    X, leverages, same_route = solve_definite(G, B, lam, H)
    tolerance = 1e-3 if dtype == np.float32 else 1e-6
    np.testing.assert_allclose(np.asarray(leverages), expected, rtol=tolerance)
    assert ("failed" in same_route) == (singular and dtype == np.float32)
    if library == "numpy":
        np.testing.assert_array_equal(X, alone)
        assert same_route == route


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("n", [1, 7, 513, 1100])
def test_congruence_and_product_of_factors_are_those_of_dense_matrices(library, n):
    rng = np.random.default_rng(n)
    F, A = rng.standard_normal((2, n, n + 5)) / np.sqrt(n)
    L, A = cholesky(F @ F.T + np.eye(n)), A @ A.T
    inverse = np.linalg.inv(L)
    expected, product = inverse @ A @ inverse.T, L @ inverse
    if library == "torch":
        torch = pytest.importorskip("torch")
        L, A, inverse = (torch.from_numpy(X) for X in (L, A, inverse))
    found = np.asarray(congruent(A, L))
    np.testing.assert_allclose(found, expected, atol=1e-10 * np.abs(expected).max())
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_allclose(np.asarray(lower_product(L, inverse)), product, atol=1e-10)
