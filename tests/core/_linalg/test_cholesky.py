"""Positive definite solves borrow the upper triangle and give everything else back."""

import numpy as np
import pytest

from fedran.core._linalg.cholesky import solve_definite


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lam", [0.5, 1e-30])
def test_the_lower_triangle_survives_success_and_failure(dtype, lam):
    rng = np.random.default_rng(0)
    F = rng.standard_normal((40, 7)).astype(dtype)  # singular: a tiny ridge makes Cholesky fail
    G = np.asfortranarray(np.tril(F @ F.T))
    before = G.copy(order="F")
    _, route = solve_definite(G, rng.standard_normal((40, 3)), lam)
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
    X, _ = solve_definite(G, B, 2.0)
    np.testing.assert_allclose(X, expected, rtol=1e-9)
