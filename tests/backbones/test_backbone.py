"""Backbones check shapes and the declared sign."""

from dataclasses import replace

import numpy as np
import pytest

from fedran.core.errors import Refused
from helpers.toy_backbone import toy


def test_a_backbone_checks_the_shapes_of_images_and_features():
    backbone, _ = toy()
    with pytest.raises(ValueError, match=r"expected images \(n, \*\(3, 4, 4\)\)"):
        backbone(np.zeros((2, 3, 5, 5), np.float32))
    wrong, _ = toy()
    object.__setattr__(wrong, "out_features", 4)
    with pytest.raises(ValueError, match=r"expected features \(2, 4\), got \(2, 3\)"):
        wrong(np.zeros((2, 3, 4, 4), np.float32))


def test_a_backbone_checks_that_its_features_are_never_negative_where_it_declares_so():
    batch = np.zeros((2, 3, 4, 4), np.float32)
    batch[1] = -0.25
    signed, _ = toy()
    assert signed(batch).min() < 0
    declared = replace(signed, nonnegative=True)
    with pytest.raises(Refused, match=r"features of toy: expected values of at least 0.* in row 1"):
        declared(batch)
    assert declared(-batch).max() > 0
