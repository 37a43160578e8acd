"""GELU in NumPy and torch against SciPy's normal distribution in float64."""

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from fedran.core._linalg import gelu as module
from fedran.core._linalg.gelu import gelu


def activated(x, as_array=np.asarray):
    H = as_array(np.array(x, dtype=np.float32)[:, None])
    gelu(H)
    return np.asarray(H[:, 0])


@pytest.mark.parametrize("as_array", [np.asarray, torch.asarray])
def test_gelu_is_exact_to_float32_rounding(as_array):
    x = np.concatenate([np.linspace(-13, 13, 200_001), [0.0, -1e4, 1e30, -1e30]])
    x = x.astype(np.float32)
    exact = x.astype(np.float64) * ndtr(x.astype(np.float64))
    error = np.abs(activated(x, as_array) - exact)
    assert np.all(error <= 3e-7 * np.maximum(np.abs(x), 1))
    assert error[x < 0].max() <= 1.5e-6


def test_blocks_do_not_change_a_value(monkeypatch):
    x = np.random.default_rng(0).standard_normal(1000)
    whole = activated(x)
    monkeypatch.setattr(module, "_BLOCK", 7)
    np.testing.assert_array_equal(activated(x), whole)
    assert activated([]).shape == (0,)


def test_nan_stays_nan():
    assert np.isnan(activated([np.nan, 1.0]))[0]


@pytest.mark.parametrize("convert", [np.copy, torch.tensor])
def test_the_largest_numbers_do_not_overflow(convert):
    largest = np.finfo(np.float32).max
    H = convert(np.array([[largest, -largest, 1e-45, -1e-45, 0.0]], dtype=np.float32))
    gelu(H)
    np.testing.assert_allclose(np.asarray(H)[0], [largest, 0, 0, 0, 0], atol=1e-44)
