"""Encoded images to pixels, with Pillow."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused


def decode_image(data: bytes, name: str) -> NDArray[np.uint8]:
    """The pixels (height, width, 3) of an encoded image, upright as its EXIF data says.

    Depends on the bytes alone, so that equal bytes mean equal features wherever they lie. Images
    deeper than 8 bits are refused: which part of their range matters is not ours to guess.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ImportError("reading images needs Pillow: pip install 'fedran[images]'") from None
    try:
        with Image.open(io.BytesIO(data)) as image:
            mode = image.mode
            deep = mode[0] in "IF"
            upright = None if deep else _rgb(ImageOps.exif_transpose(image))
    except Exception as reason:  # decoders of damaged files raise errors of many kinds
        raise Refused(
            name, "an image that Pillow can read", f"{reason}", hint="repair or remove it"
        ) from None
    if upright is None:
        raise Refused(name, "8 bits a channel", f"mode {mode}", hint="convert it to 8 bits first")
    return upright


def _rgb(image: Any) -> NDArray[np.uint8]:
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns about the direct way
    return np.asarray(image.convert("RGB"))
