"""Images in memory: sequences of images, decoding, and arrays of images of one size.

An image is *encoded* as the bytes of its file, or *decoded* as pixels: uint8 (height, width, 3).
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import MissingExtra, Refused


class Images(Protocol):
    """A sequence of images on disk or in memory. An image is decoded when it is asked for."""

    def __len__(self) -> int:
        """The number of images."""
        ...

    def encoded(self, i: int) -> bytes:
        """Image i as it would be sent: the bytes of its file, or its raw pixels."""
        ...

    def pixels(self, i: int) -> NDArray[np.uint8]:
        """Image i as (height, width, 3)."""
        ...


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled training and test images."""

    name: str
    train: Images
    y_train: NDArray[Any]
    test: Images
    y_test: NDArray[Any]

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            n, labels = len(getattr(self, part)), len(getattr(self, f"y_{part}"))
            if n != labels:
                raise ValueError(f"{self.name}: {n} {part} images but {labels} labels")


class ArrayImages:
    """Images in one array: (n, height, width) in grey or (n, height, width, 3) in colour."""

    def __init__(self, array: NDArray[np.uint8]) -> None:
        if array.dtype != np.uint8 or array.ndim not in (3, 4) or array.shape[3:] not in ((), (3,)):
            raise ValueError(
                "expected uint8 images (n, height, width) or (n, height, width, 3), got "
                f"{array.dtype} {array.shape}"
            )
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def encoded(self, i: int) -> bytes:
        """Image i as raw pixels."""
        return self.array[i].tobytes()

    def pixels(self, i: int) -> NDArray[np.uint8]:
        """Image i as (height, width, 3)."""
        image = self.array[i]
        return image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2)


class EncodedImages(Sequence[bytes]):
    """The encoded images of some rows, read when they are needed."""

    def __init__(self, images: Images, rows: NDArray[np.int64]) -> None:
        self.images, self.rows = images, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self.images.encoded(int(r)) for r in self.rows[i]]
        return self.images.encoded(int(self.rows[i]))


def cached_backbone(
    images: Images, features: NDArray[Any]
) -> Callable[[Sequence[bytes]], NDArray[Any]]:
    """A backbone that finds an image among ``images`` and returns its stored features."""
    index: dict[bytes, int] = {}

    def digest(image: bytes) -> bytes:
        return hashlib.sha256(image).digest()

    def extract(batch: Sequence[bytes]) -> NDArray[Any]:
        if not index:
            index.update((digest(images.encoded(i)), i) for i in range(len(images)))
        return features[[index[digest(image)] for image in batch]]

    return extract


def decode_image(data: bytes, name: str) -> NDArray[np.uint8]:
    """The pixels (height, width, 3) of an encoded image, rotated as its EXIF data says.

    The result depends on the bytes alone, so that equal bytes give equal features everywhere.
    Images with more than 8 bits per channel are refused: there is no general way to reduce them.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise MissingExtra("reading images needs Pillow", "images") from None
    try:
        # Pillow would try seven other formats before WebP, which takes most of the time.
        webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
        with Image.open(io.BytesIO(data), formats=("WEBP",) if webp else None) as opened:
            mode = opened.mode
            if mode[0] not in "IF":
                image = ImageOps.exif_transpose(opened)
                if image.mode == "P" and "transparency" in image.info:
                    image = image.convert("RGBA")  # Pillow warns about a direct conversion
                return np.asarray(image.convert("RGB"))
    except Exception as reason:  # decoders of damaged files raise many kinds of errors
        # Pillow's own words for this case hold an address in memory.
        foreign = isinstance(reason, UnidentifiedImageError)
        got = "no image" if foreign else f"{reason}".rstrip(".")
        raise Refused(name, "an image that Pillow can read", got, "repair or remove it") from None
    raise Refused(name, "8 bits per channel", f"mode {mode}", hint="convert it to 8 bits first")


def stack_images(images: Images, size: int | None = None) -> NDArray[np.uint8]:
    """All images as one array (n, height, width, 3).

    With ``size`` every image is resized to a square of that side (bicubic, the aspect ratio is
    not kept). Without it all images must have the same size.

    >>> stack_images(ArrayImages(np.zeros((2, 8, 8), np.uint8))).shape
    (2, 8, 8, 3)
    """
    if not len(images):
        return np.zeros((0, size or 1, size or 1, 3), np.uint8)
    first = _resized(images.pixels(0), size)
    stack = np.empty((len(images), *first.shape), np.uint8)
    stack[0] = first
    for i in range(1, len(images)):
        image = _resized(images.pixels(i), size)
        if image.shape != first.shape:
            one, other = (f"{a.shape[1]} x {a.shape[0]}" for a in (first, image))
            raise ValueError(
                f"images of different sizes ({one}, {other}): set image_size, to which all are "
                "resized"
            )
        stack[i] = image
    return stack


def _resized(image: NDArray[np.uint8], size: int | None) -> NDArray[Any]:
    if size is None or image.shape[:2] == (size, size):
        return image
    from PIL import Image

    resized = Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(resized)
