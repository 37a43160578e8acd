import numpy as np
import pytest
import scipy.sparse
import torch

from fedran.core._linalg.arrays import (
    as_matrix,
    cast,
    contiguous,
    eps,
    like,
    require_finite,
    to_device,
    to_numpy,
)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_float32_and_float64_stay_and_the_rest_becomes_float32(kind):
    for dtype, expected in [
        ("float32", "float32"),
        ("float64", "float64"),
        ("float16", "float32"),
        ("int64", "float32"),
        ("uint8", "float32"),
        ("bool", "float32"),
    ]:
        x = kind(np.ones((2, 3), dtype=dtype))
        assert to_numpy(as_matrix(x, "H")).dtype == expected


@pytest.mark.parametrize("x", [np.ones(3), np.ones((2, 2, 2)), 1.0, torch.ones(3), []])
def test_what_is_not_a_matrix_is_refused(x):
    with pytest.raises(ValueError, match=r"H must be a matrix .* got (shape|float)"):
        as_matrix(x, "H")


def test_a_wrong_width_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"Z must have 4 columns, got shape \(2, 3\)"):
        as_matrix(np.ones((2, 3)), "Z", 4)


@pytest.mark.parametrize("make", [scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_sparse_matrices_are_refused_with_a_hint(make):
    with pytest.raises(TypeError, match="toarray"):
        as_matrix(make(np.eye(2)), "H")


@pytest.mark.parametrize(
    "x",
    [
        np.ones((2, 2), dtype=complex),
        torch.ones((2, 2), dtype=torch.complex64),
        np.array([["a", "b"]]),
        np.array([[None, 1]]),
        np.array([["2020-01-01"]], dtype="M8[D]"),
    ],
)
def test_what_is_not_a_real_number_is_refused(x):
    with pytest.raises(TypeError, match="H must hold real numbers"):
        as_matrix(x, "H")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_the_first_row_that_is_not_finite_is_named(bad, kind):
    x = np.ones((5, 3))
    x[3, 1] = x[4, 0] = bad
    with pytest.raises(ValueError, match="H holds NaN or infinite values, first in row 3"):
        require_finite(kind(x), "H")
    require_finite(kind(np.ones((5, 3))), "H")


def test_moving_between_kinds_keeps_the_values():
    x = np.arange(6.0).reshape(2, 3)
    tensor = to_device(x, "cpu")
    assert isinstance(tensor, torch.Tensor)
    for back in (to_device(tensor, None), like(tensor, x), to_numpy(like(x, tensor))):
        assert isinstance(back, np.ndarray)
        np.testing.assert_array_equal(back, x)
    assert to_numpy(x) is x


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_cast_and_unit_roundoff(kind):
    x = kind(np.ones((1, 1), dtype=np.float32))
    assert cast(x, "float32") is x
    assert eps(x) == np.finfo(np.float32).eps
    assert eps(cast(x, "float64")) == np.finfo(np.float64).eps


def test_a_read_only_array_moves_to_torch_without_a_warning():
    x = np.ones((2, 2))
    x.flags.writeable = False
    assert to_device(x, "cpu").sum() == 4


def test_contiguous_is_row_major_and_copies_when_asked():
    A = np.asfortranarray(np.random.default_rng(0).random((3, 4)))
    assert contiguous(A).flags.c_contiguous
    C = np.ascontiguousarray(A)
    assert np.shares_memory(contiguous(C), C)
    assert not np.shares_memory(contiguous(C, copy=True), C)
    T = torch.as_tensor(C)
    assert contiguous(T.T).is_contiguous()
    assert contiguous(T, copy=True).data_ptr() != T.data_ptr()
