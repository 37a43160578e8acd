"""Random shifts and flips of images against a loop over pixels."""

import numpy as np
import pytest
import torch

from fedran_bench.methods.trained.rows import augment


def pictures(seed, n, size):
    values = np.random.default_rng(seed).integers(1, 256, (n, 3, size, size))
    return torch.tensor(values, dtype=torch.uint8)


def slowly_augmented(X, random):
    """The same draws, then one pixel after the other."""
    n, channels, h, w = X.shape
    pad = min(4, h // 8)
    dy = torch.randint(0, 2 * pad + 1, (n, 1), generator=random)[:, 0].tolist()
    dx = torch.randint(0, 2 * pad + 1, (n, 1), generator=random)[:, 0].tolist()
    flip = (torch.rand((n, 1), generator=random) < 0.5)[:, 0].tolist()
    out = np.zeros(X.shape, dtype=X.numpy().dtype)
    for i, c, y, x in np.ndindex(n, channels, h, w):
        column = w - 1 - x if flip[i] else x
        above, left = y + dy[i] - pad, column + dx[i] - pad
        if 0 <= above < h and 0 <= left < w:
            out[i, c, y, x] = X[i, c, above, left]
    return out


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n", "size"), [(5, 8), (3, 12), (2, 32), (1, 4)])
def test_augmentation_against_a_loop_over_pixels(seed, n, size):
    X = pictures(seed, n, size)
    before = X.clone()
    found = augment(X, torch.Generator().manual_seed(seed))
    np.testing.assert_array_equal(
        found.numpy(), slowly_augmented(X, torch.Generator().manual_seed(seed))
    )
    assert found.dtype == torch.uint8
    assert torch.equal(X, before)
    assert torch.equal(found, augment(X, torch.Generator().manual_seed(seed)))


def test_features_are_not_augmented_and_draw_no_random_numbers():
    X, random = torch.ones(4, 9), torch.Generator().manual_seed(3)
    before = random.get_state()
    assert augment(X, random) is X
    assert torch.equal(random.get_state(), before)
