"""Backbones by name."""

import pytest

from fedran.backbones.catalogue import load_backbone


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
