"""Preprocessing: from pixels of any size to the input of a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import MissingExtra

Interpolation = Literal["bicubic", "bilinear"]
Triple = tuple[float, float, float]

IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop the centre and normalise: (x - mean) / std with x in 0 .. 255.

    ``resize`` is (height, width), or one number for the shorter side, which then needs a ``crop``
    so that all images get the same shape. The text form is exact and is part of the fingerprint
    of the features.

    >>> p = Preprocessing(resize=(224, 224), mean=(127, 127, 127), std=(128, 128, 128))
    >>> str(p)
    'bicubic 224x224, (x - 127) / 128'
    >>> p(np.zeros((32, 32, 3), np.uint8)).shape
    (3, 224, 224)
    """

    resize: int | tuple[int, int]
    mean: Triple
    std: Triple
    crop: tuple[int, int] | None = None
    interpolation: Interpolation = "bicubic"
    rounded: bool = True
    """Whether resized pixels are rounded to whole numbers, as image libraries do. Rounding costs
    accuracy where small images are enlarged."""

    def __post_init__(self) -> None:
        if self.interpolation not in ("bicubic", "bilinear"):
            raise ValueError(f"expected bicubic or bilinear, got {self.interpolation!r}")
        exact = (self.resize, self.resize) if isinstance(self.resize, int) else self.resize
        if self.crop is None and isinstance(self.resize, int):
            raise ValueError("a resize of the shorter side needs a crop, to give one shape")
        crop = self.crop or exact
        if min(crop) < 1 or crop[0] > exact[0] or crop[1] > exact[1]:
            raise ValueError(f"crop {crop} does not fit into images resized to {self.resize}")
        if len(self.mean) != 3 or len(self.std) != 3 or not min(self.std) > 0:
            raise ValueError(f"expected 3 means and 3 positive stds, got {self.mean}, {self.std}")

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result."""
        if self.crop is not None:
            return self.crop
        assert isinstance(self.resize, tuple)
        return self.resize

    def resized_shape(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of an image after resizing, before the crop."""
        if not isinstance(self.resize, int):
            return self.resize
        if height <= width:
            return self.resize, int(self.resize * width / height)
        return int(self.resize * height / width), self.resize

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Pixels (height, width, 3) as float32 (3, *shape)."""
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
            raise ValueError(
                f"expected uint8 pixels (height, width, 3), got {pixels.dtype} {pixels.shape}"
            )
        planes, (height, width) = self._resized(pixels), self.shape
        top, left = (planes.shape[1] - height) // 2, (planes.shape[2] - width) // 2
        x = planes[:, top : top + height, left : left + width].astype(np.float32, order="C")
        for plane, mean, std in zip(x, self.mean, self.std, strict=True):  # they fit in the cache
            plane -= np.float32(mean)
            plane /= np.float32(std)
        return x

    def __str__(self) -> str:
        if isinstance(self.resize, int):
            how = f"{self.interpolation} shorter side {self.resize}"
        else:
            how = f"{self.interpolation} {self.resize[0]}x{self.resize[1]}"
        how += "" if self.rounded else " unrounded"
        crop = f", centre {self.crop[0]}x{self.crop[1]}" if self.crop else ""
        return f"{how}{crop}, (x - {_numbers(self.mean)}) / {_numbers(self.std)}"

    def _resized(self, pixels: NDArray[np.uint8]) -> NDArray[Any]:
        """The image as planes (3, height, width), before the crop."""
        try:
            from PIL import Image
        except ImportError:
            raise MissingExtra("resizing needs Pillow", "images") from None
        height, width = self.resized_shape(*pixels.shape[:2])
        planes = pixels.transpose(2, 0, 1)
        if (height, width) == pixels.shape[:2]:
            return planes
        how = getattr(Image.Resampling, self.interpolation.upper())
        if self.rounded:
            image = Image.fromarray(pixels).resize((width, height), how)
            return np.asarray(image).transpose(2, 0, 1)
        # Pillow interpolates floats only in single channels, and bicubic values overshoot.
        resized = np.empty((3, height, width), np.float32)
        for plane, wide in zip(planes, resized, strict=True):
            single = Image.fromarray(plane.astype(np.float32, order="C"))
            np.clip(np.asarray(single.resize((width, height), how)), 0, 255, wide)
        return resized


def imagenet(size: int, mean: Triple = IMAGENET_MEAN, std: Triple = IMAGENET_STD) -> Preprocessing:
    """Bicubic resizing to (size, size). Mean and std are those of pixels in 0 .. 1."""
    if not all(0 <= v <= 1 for v in (*mean, *std)):
        raise ValueError(
            f"mean and std: expected those of pixels in 0 .. 1, from 0 to 1 each, got {mean} and "
            f"{std}; divide those of pixels in 0 .. 255 by 255"
        )
    return Preprocessing((size, size), mean=_of_255(mean), std=_of_255(std))


def _of_255(values: Triple) -> Triple:
    a, b, c = (round(255 * v, 6) for v in values)
    return a, b, c


def _numbers(values: Triple) -> str:
    if len(set(values)) == 1:
        return f"{values[0]:.9g}"
    return "[" + " ".join(f"{v:.9g}" for v in values) + "]"
