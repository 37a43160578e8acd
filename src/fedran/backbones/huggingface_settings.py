"""The settings of transformers' image processors as our preprocessing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedran.backbones.preprocessing import Interpolation, Preprocessing, Triple
from fedran.core.errors import Refused

_FILTERS: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}
_UNKNOWN = ("do_pad", "do_flip_channel_order", "rescale_offset", "include_top", "do_thumbnail")
_WHOLE_FROM = 384
"""ConvNeXt's processor cuts nothing off from this size on."""


def preprocessing_of(settings: Mapping[str, Any], name: str) -> Preprocessing:
    """What an image processor's settings say, or Refused where they say more than we can do."""
    for field in _UNKNOWN:
        if settings.get(field):
            raise Refused(
                f"hf:{name}: {field}", "a step that fedran knows", settings[field], hint=_HINT
            )
    if not settings.get("do_resize", True):
        raise Refused(f"hf:{name}: do_resize", "true", False, hint=_HINT)
    resample = int(settings.get("resample") or 2)
    if resample not in _FILTERS:
        raise Refused(f"hf:{name}: resample", "2 (bilinear) or 3 (bicubic)", resample, hint=_HINT)
    resize, crop = _sizes(settings, name)
    mean, std = _normalisation(settings)
    return Preprocessing(resize, mean, std, crop, _FILTERS[resample])


_HINT = "export the model to ONNX and use onnx:FILE"


def _sizes(
    settings: Mapping[str, Any], name: str
) -> tuple[int | tuple[int, int], tuple[int, int] | None]:
    size = settings.get("size")
    if not isinstance(size, Mapping):
        raise Refused(f"hf:{name}: size", "height and width, or shortest_edge", size, hint=_HINT)
    side, share = size.get("shortest_edge"), settings.get("crop_pct")
    if side and share:
        if side >= _WHOLE_FROM:
            return (side, side), None
        return int(side / share), (side, side)
    crop = None
    if settings.get("do_center_crop"):
        crop = _pair(settings.get("crop_size"), f"hf:{name}: crop_size")
    if side and crop and not size.get("longest_edge"):
        return int(side), crop
    return _pair(size, f"hf:{name}: size"), crop


def _pair(size: Any, field: str) -> tuple[int, int]:
    if isinstance(size, Mapping) and size.get("height") and size.get("width"):
        return int(size["height"]), int(size["width"])
    raise Refused(field, "height and width", size, hint=_HINT)


def _normalisation(settings: Mapping[str, Any]) -> tuple[Triple, Triple]:
    """Mean and std for pixels in 0 .. 255."""
    factor = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if settings.get("do_normalize", True):
        mean, std = settings["image_mean"], settings["image_std"]
    return _scaled(mean, factor), _scaled(std, factor)


def _scaled(values: Any, factor: float) -> Triple:
    # Rounded, because 1 / 255 is stored with more or fewer digits and must not change the key.
    a, b, c = (round(float(v) / factor, 6) for v in values)
    return a, b, c
