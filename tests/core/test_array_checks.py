"""The core's annotations of shapes and dtypes are checked while the tests run."""

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

from fedran.core._linalg.blas import matmul
from fedran.core.solve.ridge import solve_gram
from fedran.core.sums.class_sums import ClassSums


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_arrays_of_a_wrong_shape_or_dtype_are_noticed(kind):
    with pytest.raises(TypeCheckError):
        matmul(kind(np.ones((2, 3))), kind(np.ones((4, 2))))
    with pytest.raises(TypeCheckError):
        solve_gram(kind(np.eye(3)), kind(np.ones((3, 1), dtype=np.float32)), 1.0)
    with pytest.raises(TypeCheckError):
        ClassSums.from_codes(kind(np.eye(3)), (0,), np.zeros(2, dtype=np.int64))
    assert matmul(kind(np.ones((2, 3))), kind(np.ones((3, 2)))).shape == (2, 2)


def test_a_wrong_result_is_noticed():
    sums = ClassSums(("a",), np.ones((2, 1), dtype=np.float32), (1,))
    with pytest.raises(TypeCheckError):
        sums["a"]
