import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedran.core.exact_sum import (
    ExactSum,
    add_outer,
    contiguous,
    pack_lower,
    symmetric,
    unpack_lower,
)
from helpers.reference import quick


def dense(exact):
    if exact.form == "stack":
        F = np.asarray(exact.factor())
        return F @ F.T
    return np.asarray(symmetric(exact.gram()))


@quick
@given(
    st.integers(1, 20),
    st.lists(st.integers(0, 9), max_size=6),
    st.integers(0, 2**32 - 1),
    st.sampled_from([None, "cpu"]),
    st.booleans(),
)
def test_the_sum_is_the_sum_of_grams_in_either_form(M, widths, seed, device, stack):
    rng = np.random.default_rng(seed)
    exact = ExactSum(M, "float64", device, stack)
    expected = np.zeros((M, M))
    for w in widths:
        F = rng.standard_normal((M, w))
        exact.add(F)
        expected += F @ F.T
        np.testing.assert_allclose(dense(exact), expected, atol=1e-12 * (1 + np.trace(expected)))
    assert exact.width == sum(widths)
    limit = M // 4 if stack else 0
    assert exact.form == ("stack" if exact.width <= limit else "gram")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "layout", [np.ascontiguousarray, np.asfortranarray, lambda F: np.repeat(F, 2, axis=1)[:, ::2]]
)
def test_every_memory_layout_adds_the_same(dtype, layout):
    F = np.random.default_rng(0).random((5, 3)).astype(dtype)
    gram = add_outer(np.eye(5, dtype=dtype, order="F"), layout(F))
    np.testing.assert_allclose(symmetric(gram), np.eye(5) + F @ F.T, rtol=1e-5)


def test_what_was_added_is_a_copy():
    F = np.ones((8, 1), dtype=np.float32)
    exact = ExactSum(8)
    exact.add(F)
    F[:] = 7
    assert exact.factor().max() == 1
    tensor = torch.ones((8, 1))
    on_torch = ExactSum(8, device="cpu")
    on_torch.add(tensor)
    tensor[:] = 7
    assert on_torch.factor().max() == 1


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_gram_can_be_added_to_a_stack(device):
    exact = ExactSum(8, "float64", device)
    exact.add(np.ones((8, 1)))
    exact.add_gram(np.asfortranarray(2 * np.eye(8)))
    np.testing.assert_allclose(dense(exact), np.ones((8, 8)) + 2 * np.eye(8))


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("widths", [[], [1, 1], [1, 3]])
def test_a_restored_sum_goes_on(device, widths):
    rng = np.random.default_rng(0)
    one, two = ExactSum(8, device=device), ExactSum(8, device=device)
    for w in widths:
        one.add(rng.random((8, w)))
    held = one.factor() if one.form == "stack" else one.gram()
    two.restore(one.form, np.asarray(held).copy(), one.width)
    more = rng.random((8, 1))
    one.add(more)
    two.add(more)
    assert (one.form, one.width) == (two.form, two.width)
    np.testing.assert_array_equal(dense(one), dense(two))


@quick
@given(st.integers(0, 9), st.sampled_from([np.float32, np.float64]))
def test_a_packed_triangle_unpacks_to_the_same_matrix(m, dtype):
    A = np.random.default_rng(m).random((m, m)).astype(dtype)
    packed = pack_lower(A)
    assert packed.size == m * (m + 1) // 2
    unpacked = unpack_lower(packed, m)
    np.testing.assert_array_equal(unpacked, np.tril(A))
    np.testing.assert_array_equal(symmetric(unpacked), np.tril(A) + np.tril(A, -1).T)
    assert unpacked.dtype == dtype
    assert unpacked.flags.f_contiguous


def test_contiguous_is_row_major_and_copies_when_asked():
    A = np.asfortranarray(np.random.default_rng(0).random((3, 4)))
    assert contiguous(A).flags.c_contiguous
    C = np.ascontiguousarray(A)
    assert np.shares_memory(contiguous(C), C)
    assert not np.shares_memory(contiguous(C, copy=True), C)
    T = torch.as_tensor(C)
    assert contiguous(T.T).is_contiguous()
    assert contiguous(T, copy=True).data_ptr() != T.data_ptr()
