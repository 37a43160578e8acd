"""Eigenpairs: every driver gives the same ones."""

import numpy as np
import pytest
import scipy.linalg

from fedran.core._linalg.eigh import eigh


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
