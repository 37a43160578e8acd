"""Images and texts: sequences of them, decoding, and arrays of images of one size.

An image is *encoded* as the bytes of its file, or *decoded* as pixels: uint8 (height, width, 3).
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import MissingExtra, Refused
from fedran.data.rows import LABEL, UNLABELLED, as_labels, is_table, none_if_missing, read_table

LINES = ".txt"
"""Suffix of files with one text per line."""
COLUMN = "text"
"""Name of the column of texts, unless the user names another."""
Range = tuple[float, float]
"""The values that become black and white, for images of more than 8 bits."""


class Items(Protocol):
    """A sequence of images or texts."""

    def __len__(self) -> int:
        """The number of items."""
        ...

    def encoded(self, i: int) -> bytes:
        """Item i as it would be sent: the bytes of its file, its raw pixels, or UTF-8."""
        ...


class Images(Items, Protocol):
    """A sequence of images on disk or in memory. An image is decoded when it is asked for."""

    def pixels(self, i: int) -> NDArray[np.uint8]:
        """Image i as (height, width, 3)."""
        ...


Kind = TypeVar("Kind", bound=Items)


@dataclass(frozen=True, eq=False)
class ItemSet(Generic[Kind]):
    """Training and test images or texts, or only the former. Labels may be missing ("", NaN)."""

    name: str
    train: Kind
    y_train: NDArray[Any]
    test: Kind
    y_test: NDArray[Any]
    values: Range | None = None
    """What scales images of more than 8 bits; part of what their features depend on."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """How many files of each type are no images."""

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            n, labels = len(getattr(self, part)), len(getattr(self, f"y_{part}"))
            if n != labels:
                raise ValueError(f"{self.name}: {n} {part} images but {labels} labels")


ImageSet = ItemSet[Images]


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


def decode_image(data: bytes, name: str, values: Range | None = None) -> NDArray[np.uint8]:
    """The pixels (height, width, 3) of an encoded image, rotated as its EXIF data says.

    The result depends on the bytes and ``values`` alone, so that equal bytes give equal features
    everywhere. More than 8 bits per pixel are scaled: ``values`` become black and white, by default
    the window that a DICOM file names. Other deep images are refused, because no range suits all.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise MissingExtra("reading images needs Pillow", "images") from None
    try:
        if is_dicom(data):
            return _decode_dicom(data, name, values)
        # Pillow would try seven other formats before WebP, which takes most of the time.
        webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
        with Image.open(io.BytesIO(data), formats=("WEBP",) if webp else None) as opened:
            # Of 16-bit colours, Pillow keeps the higher byte.
            colours = opened.format == "PNG" and data[24] == 16 and opened.mode[:3] == "RGB"
            image = ImageOps.exif_transpose(opened)
            if image.mode[0] not in "IF" and not colours:
                if image.mode == "P" and "transparency" in image.info:
                    image = image.convert("RGBA")  # Pillow warns about a direct conversion
                return np.asarray(image.convert("RGB"))
            deep = np.asarray(image)
    except (Refused, MissingExtra):
        raise
    except Exception as reason:  # decoders of damaged files raise many kinds of errors
        # Pillow's own words for this case hold an address in memory.
        foreign = isinstance(reason, UnidentifiedImageError)
        got = "no image" if foreign else f"{reason}".rstrip(".")
        raise Refused(name, "an image that Pillow can read", got, "repair or remove it") from None
    if colours:
        raise Refused(name, "8 bits per colour", "16", "convert it to 8 bits first")
    if values is None:
        got = f"values from {deep.min():g} to {deep.max():g}"
        hint = "state which values become black and white, for example --range 0,4095"
        raise Refused(name, "8 bits per pixel, or a range of values", got, hint)
    return _to_8_bits(deep, *values)


def is_dicom(data: bytes) -> bool:
    """Whether a file that begins so is DICOM."""
    return data[128:132] == b"DICM"


def _decode_dicom(data: bytes, name: str, values: Range | None) -> NDArray[np.uint8]:
    """A DICOM image by ``values`` in its units (such as Hounsfield's), else by its first window."""
    try:
        from pydicom import dcmread
        from pydicom.pixels import apply_modality_lut, apply_windowing
    except ImportError:
        raise MissingExtra(f"{name}: DICOM files need pydicom", "dicom") from None
    file = dcmread(io.BytesIO(data))
    stored = file.pixel_array
    if stored.ndim == 3 and stored.shape[2] == 3 and stored.dtype == np.uint8:
        return stored
    if stored.ndim != 2:
        raise Refused(name, "one grey or 8-bit colour image", f"shape {stored.shape}")
    found = apply_modality_lut(stored, file)
    if values is not None:
        low, high = values
    elif "WindowCenter" in file:
        ends = np.array([[-1e6, 1e6]]) if found.dtype.kind == "f" else np.array([[-(2**31), 2**31]])
        low, high = apply_windowing(ends, file)[0]  # the black and the white of the window
        found = apply_windowing(found, file)
    elif file.BitsStored <= 8:
        low, high = 0, 2**file.BitsStored - 1
    else:
        got = f"no window, and values from {found.min():g} to {found.max():g}"
        hint = "state which values become black and white, for example --range 0,4095"
        raise Refused(name, "a window in the file, or a range of values", got, hint)
    pixels = _to_8_bits(found, low, high)
    return 255 - pixels if file.PhotometricInterpretation == "MONOCHROME1" else pixels


def _to_8_bits(image: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Grey values (height, width) as three equal colours; ``low`` is black and ``high`` white."""
    share = np.clip((image.astype(np.float64) - low) / (high - low), 0, 1)
    return np.repeat(np.rint(255 * share).astype(np.uint8)[:, :, None], 3, axis=2)


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


class Texts:
    """Some texts, which a backbone takes one by one."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def encoded(self, i: int) -> bytes:
        """Text i in UTF-8."""
        return self.texts[i].encode()

    def text(self, i: int) -> str:
        """Text i."""
        return self.texts[i]


def is_text(path: Path) -> bool:
    """Whether a file may hold texts, by its suffix."""
    return is_table(path) or path.suffix.lower() == LINES


def load_texts(path: Path, column: str = COLUMN, label: str | None = None) -> ItemSet[Texts]:
    """The texts of a file, and their labels from the column ``label``, which need not exist.

    The column is by default ``LABEL``. A label may be missing.
    """
    labels: list[Any] = []
    if is_table(path):
        hint = 'name the column of texts with --column "{}"; rows of numbers need no features'
        named = [column] if label is None else [column, label]
        others = read_table(path, named, hint, LABEL, features=False).others
        texts, labels = others[column], others.get(label or LABEL, [])
        labels = as_labels(labels) if path.suffix.lower() == ".csv" else none_if_missing(labels)
    else:
        try:
            texts = path.read_text("utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise Refused(path.name, "text in UTF-8", "another encoding") from None
    empty = [i for i, text in enumerate(texts) if not isinstance(text, str) or not text.strip()]
    if empty or not texts:
        got = f"none in row {empty[0] + 1}" if empty else "no row"
        raise Refused(path.name, "a text in every row", got, "leave such rows out")
    labels = labels or [None] * len(texts)
    missing = np.nan if all(y is None or isinstance(y, int) for y in labels) else UNLABELLED
    y = np.array([missing if label is None else label for label in labels])
    return ItemSet(path.stem, Texts(texts), y, Texts([]), y[:0])
