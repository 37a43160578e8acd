"""Backbones check shapes."""

import numpy as np
import pytest

from helpers.toy_backbone import toy


def test_a_backbone_checks_the_shapes_of_images_and_features():
    backbone, _ = toy()
    with pytest.raises(ValueError, match=r"expected images \(n, \*\(3, 4, 4\)\)"):
        backbone(np.zeros((2, 3, 5, 5), np.float32))
    wrong, _ = toy()
    object.__setattr__(wrong, "out_features", 4)
    with pytest.raises(ValueError, match=r"expected features \(2, 4\), got \(2, 3\)"):
        wrong(np.zeros((2, 3, 4, 4), np.float32))
