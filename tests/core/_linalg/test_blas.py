"""Products through BLAS equal NumPy's, whatever the layout."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedran.core._linalg.blas import (
    add_outer,
    gram,
    matmul,
    pack_lower,
    symmetric,
    unpack_lower,
)
from helpers.core.reference import quick

LAYOUTS = {
    "rows": np.ascontiguousarray,
    "columns": np.asfortranarray,
    "strided": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
}


def random(shape, dtype, layout, seed=0):
    X = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return LAYOUTS[layout](X)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_matmul_is_the_product(dtype, left, right):
    A, B = random((7, 5), dtype, left), random((5, 9), dtype, right, 1)
    C = matmul(A, B)
    assert C.dtype == dtype
    assert C.flags.c_contiguous
    np.testing.assert_allclose(C, A @ B, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("left", LAYOUTS)
def test_matmul_fills_the_given_array_and_nothing_else(left):
    A, B = random((4, 5), np.float32, left), random((5, 3), np.float32, "rows", 1)
    whole = np.full((8, 3), 7.0, dtype=np.float32)
    matmul(A, B, out=whole[2:6])
    np.testing.assert_allclose(whole[2:6], A @ B, rtol=1e-5, atol=1e-6)
    assert np.all(whole[[0, 1, 6, 7]] == 7.0)


@pytest.mark.parametrize("shapes", [((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0))])
def test_empty_products_are_zeros(shapes):
    A, B = (np.zeros(s, dtype=np.float32) for s in shapes)
    out = np.full((shapes[0][0], shapes[1][1]), 3.0, dtype=np.float32)
    assert np.array_equal(matmul(A, B), A @ B)
    assert np.array_equal(matmul(A, B, out=out), A @ B)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [1, 40, 513, 1100])
def test_gram_fills_both_triangles(dtype, layout, width):
    A = random((20, width), dtype, layout)
    K = gram(A)
    assert np.array_equal(K, K.T)
    np.testing.assert_allclose(K, A.T @ A, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_add_outer_adds_the_lower_triangle_in_place(dtype, layout):
    F = random((6, 3), dtype, layout)
    G = np.asfortranarray(np.eye(6, dtype=dtype))
    total = add_outer(G, F)
    assert total is G or np.shares_memory(total, G)
    np.testing.assert_allclose(np.tril(total), np.tril(np.eye(6) + F @ F.T), rtol=1e-5, atol=1e-6)


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
