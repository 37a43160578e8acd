"""Backbones by name."""

import pytest

from fedran.backbones.catalogue import load_backbone


@pytest.mark.parametrize("spec", ["efficientnet_lite0", "hf:", "onnx", "resnet50", ""])
def test_unknown_backbones_are_errors_that_list_the_forms(spec):
    with pytest.raises(ValueError, match=r"expected efficientnet-lite0, hf:NAME_OR_FOLDER, onnx"):
        load_backbone(spec)


def test_an_unknown_backbone_suggests_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'efficientnet-lite0'"):
        load_backbone("EfficientNet_Lite0")


def test_size_mean_and_std_are_for_onnx_files_only():
    with pytest.raises(ValueError, match="are for onnx:FILE"):
        load_backbone("efficientnet-lite0", size=224)
