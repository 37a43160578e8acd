"""Backbones check shapes and the declared sign, and compute without TF32."""

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


@pytest.mark.parametrize("before", [True, False])
def test_torch_networks_run_without_tf32_and_leave_the_switches_as_they_were(before):
    torch = pytest.importorskip("torch")
    from fedran.backbones.backbone import torch_forward

    switches = torch.backends.cudnn, torch.backends.cuda.matmul
    usual, seen = [switch.allow_tf32 for switch in switches], []

    def network(images):
        seen.append([switch.allow_tf32 for switch in switches])
        if images.max() > 1:
            raise ValueError("too bright")
        return images.mean(dim=(2, 3))

    forward = torch_forward(network, "cpu")
    try:
        for switch in switches:
            switch.allow_tf32 = before
        forward(np.zeros((2, 3, 4, 4), np.float32))
        with pytest.raises(ValueError, match="too bright"):
            forward(np.full((2, 3, 4, 4), 2.0, np.float32))
        assert seen == [[False, False], [False, False]]
        assert [switch.allow_tf32 for switch in switches] == [before, before]
    finally:
        for switch, value in zip(switches, usual, strict=True):
            switch.allow_tf32 = value
