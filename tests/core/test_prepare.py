"""Prepared rows, as a kernel head takes them."""

import numpy as np
import pytest
import torch

from fedran.core.errors import Refused
from fedran.core.prepare import KernelFeatures


@pytest.mark.parametrize("kind", ["cosine", "hellinger"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor])
def test_blocks_are_the_prepared_rows_and_fit(kind, bias, array):
    phi = KernelFeatures(5, kind, bias)
    Z = array(np.random.default_rng(0).random((23, 5)))
    for max_bytes in (1, 4 * phi.width * 4, 10**6):
        found = list(phi.blocks(Z, max_bytes))
        assert all(H.nbytes <= max(max_bytes, 4 * phi.width) for _, H in found)
        assert np.array_equal(np.concatenate([np.arange(23)[rows] for rows, _ in found]), range(23))
        whole = np.concatenate([np.asarray(H) for _, H in found])
        np.testing.assert_allclose(whole, np.asarray(phi(Z)), rtol=1e-6)


def test_blocks_refuse_at_once_what_the_map_refuses():
    with pytest.raises(Refused, match="NaN in row 1, column 0"):
        KernelFeatures(2).blocks([[1.0, 2.0], [np.nan, 1.0]])
