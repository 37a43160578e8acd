"""Eigenpairs: every driver gives the same ones, and the mixed one loses nothing."""

import numpy as np
import pytest
import scipy.linalg

from fedran.core._linalg.eigh import MIXED_SIZE, eigh


def steep_gram(n, seed=0):
    """A Gram with one dominant direction, as relu random features have it."""
    rng = np.random.default_rng(seed)
    H = np.maximum(0.1 * rng.standard_normal((n, 2 * n)) + 1.0, 0)
    return (H @ H.T).astype(np.float32), H.astype(np.float32)


@pytest.mark.parametrize("n", [40, MIXED_SIZE, MIXED_SIZE + 37])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_values_are_accurate_and_vectors_orthonormal(n, share):
    K, _ = steep_gram(n)
    first = n - max(1, int(share * n))
    values, U = eigh(K, first)
    expected = scipy.linalg.eigvalsh(K.astype(np.float64))[first:]
    np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-9 * expected[-1])
    gap = U.T.astype(np.float64) @ U - np.eye(n - first)
    assert np.abs(gap).max() < 1e-5


def test_float32_vectors_are_as_good_as_rounded_float64_ones():
    n = MIXED_SIZE + 100
    K, H = steep_gram(n)
    _, mixed = eigh(K, 0)
    assert mixed.dtype == np.float32
    double = scipy.linalg.eigh(K.astype(np.float64))[1].astype(np.float32)

    def deviation(U):
        F = H.T.astype(np.float64) @ U
        V = F / np.linalg.norm(F, axis=0)
        return np.linalg.norm(V.T @ V - np.eye(n))

    assert deviation(mixed) < 1.1 * deviation(double)
