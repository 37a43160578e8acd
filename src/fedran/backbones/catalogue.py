"""Backbones by name, as a command line or a configuration gives them."""

from __future__ import annotations

from fedran.backbones.backbone import Backbone
from fedran.backbones.efficientnet_lite import NAME as EFFICIENTNET
from fedran.backbones.efficientnet_lite import efficientnet_lite0
from fedran.backbones.huggingface import hugging_face
from fedran.backbones.onnx import onnx_backbone
from fedran.backbones.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Triple
from fedran.core.errors import nearest, printable

FORMS = (EFFICIENTNET, "hf:NAME_OR_FOLDER", "onnx:FILE")


def load_backbone(
    spec: str,
    device: str | None = None,
    *,
    size: int | None = None,
    mean: Triple | None = None,
    std: Triple | None = None,
    nonnegative: bool | None = None,
) -> Backbone:
    """``"efficientnet-lite0"``, ``"hf:NAME_OR_FOLDER"`` or ``"onnx:FILE"``.

    ``size``, ``mean`` and ``std`` (of pixels in 0 .. 1) are for ONNX files, which do not describe
    how images are prepared; neither do they say whether features can be negative, so
    ``nonnegative`` declares it (by default they can). The other models are known.
    """
    kind, _, rest = spec.partition(":")
    if kind == "onnx" and rest:
        return onnx_backbone(
            rest,
            device,
            size=size,
            mean=mean or IMAGENET_MEAN,
            std=std or IMAGENET_STD,
            nonnegative=bool(nonnegative),
        )
    if (size, mean, std, nonnegative) != (None, None, None, None):
        raise ValueError(
            f"size, mean, std and nonnegative are for onnx:FILE, but the backbone is {spec!r}"
        )
    if spec == EFFICIENTNET:
        return efficientnet_lite0(device)
    if kind == "hf" and rest:
        return hugging_face(rest, device)
    guess = nearest(spec.lower(), (EFFICIENTNET, "hf:", "onnx:"))
    raise ValueError(f"backbone: expected {', '.join(FORMS)}, got {printable(spec)!r}{guess}")
