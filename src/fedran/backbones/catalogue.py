"""Backbones by name, as a command line or a configuration gives them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from fedran.backbones.backbone import Backbone
from fedran.backbones.efficientnet_lite import NAME as EFFICIENTNET
from fedran.backbones.efficientnet_lite import efficientnet_lite0
from fedran.backbones.huggingface import hugging_face, text_backbone
from fedran.backbones.onnx import onnx_backbone
from fedran.backbones.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Triple
from fedran.core.errors import MissingExtra, nearest, printable

FORMS = (EFFICIENTNET, "vit:FILE", "hf:NAME_OR_FOLDER", "onnx:FILE")
SUFFIXES = {".onnx": "onnx", ".safetensors": "vit"}
"""Files that say by their suffix which form they have."""
FILES = ("vit:", "hf:", "onnx:")
"""Forms that need a name behind the colon."""


def load_backbone(
    spec: str,
    device: str | None = None,
    *,
    size: int | None = None,
    mean: Triple | None = None,
    std: Triple | None = None,
    nonnegative: bool | None = None,
    takes: Literal["pixels", "text"] = "pixels",
) -> Backbone:
    """A backbone in one of these ``FORMS``. That of texts is ``hf:FOLDER``.

    ``size``, ``mean`` and ``std`` (of pixels in 0 .. 1) are for ONNX files, which do not describe
    how images are prepared; neither do they say whether features can be negative, so
    ``nonnegative`` declares it (by default they can). ``mean`` and ``std`` are also for the file
    of a ViT. The other models are known.
    """
    if any((Path(spec) / name).is_file() for name in ("config.json", "modules.json")):
        spec = f"hf:{spec}"
    elif ":" not in spec and Path(spec).suffix in SUFFIXES:
        spec = f"{SUFFIXES[Path(spec).suffix]}:{spec}"
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
    if (size, nonnegative) != (None, None):
        raise ValueError(f"size and nonnegative are for onnx:FILE, but the backbone is {spec!r}")
    if kind == "vit" and rest:
        if find_spec("torch") is None:
            raise MissingExtra("a ViT needs PyTorch", "torch")
        from fedran.backbones.vit import vit_backbone

        return vit_backbone(rest, device, mean=mean, std=std)
    if (mean, std) != (None, None):
        raise ValueError(
            f"mean and std are for onnx:FILE and vit:FILE, but the backbone is {spec!r}"
        )
    if kind == "hf" and rest:
        return hugging_face(rest, device) if takes == "pixels" else text_backbone(rest, device)
    if takes == "text":
        raise ValueError(f"backbone: expected hf:FOLDER for texts, got {printable(spec)!r}")
    if spec.replace("-", "_") == EFFICIENTNET:
        return efficientnet_lite0(device)
    guess = "" if spec in FILES else nearest(spec.lower(), (EFFICIENTNET, *FILES))
    raise ValueError(f"backbone: expected {', '.join(FORMS)}, got {printable(spec)!r}{guess}")
