"""Images of one size as one array, for methods that train a network on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.data.dataset import Dataset
from fedran.data.images import Images, ImageSet


class ArrayImages:
    """Images held in memory: (n, height, width) of grey or (n, height, width, 3) of colour."""

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


def stack_pixels(images: Images, size: int | None = None) -> NDArray[np.uint8]:
    """All images as (n, height, width, 3); ``size`` makes them squares of that many pixels.

    Without it all must have one size already. Resizing squeezes the longer side (bicubic).

    >>> stack_pixels(ArrayImages(np.zeros((2, 8, 8), np.uint8))).shape
    (2, 8, 8, 3)
    """
    if not len(images):
        return np.zeros((0, size or 1, size or 1, 3), np.uint8)
    first = _squared(images.pixels(0), size)
    stack = np.empty((len(images), *first.shape), np.uint8)
    for i in range(len(images)):
        image = _squared(images.pixels(i), size)
        if image.shape != first.shape:
            one, other = (f"{a.shape[1]} x {a.shape[0]}" for a in (first, image))
            raise ValueError(
                f"images of different sizes ({one}, {other}): set image_size, to which all are "
                "resized"
            )
        stack[i] = image
    return stack


def as_images(dataset: Dataset, size: int | None = None) -> Dataset:
    """The same rows as pixels: kind ``images``, refused where the images are not at hand."""
    if dataset.kind == "images" and (size is None or dataset.X_train.shape[1:3] == (size, size)):
        return dataset
    if dataset.images is None or dataset.test_images is None:
        raise ValueError(
            f"{dataset.name} has no images beside its features, and a network is trained on "
            "images: use a dataset that has them (docs/how-to/features.md), or network = 'head'"
        )
    return replace(
        dataset,
        kind="images",
        X_train=stack_pixels(dataset.images, size),
        X_test=stack_pixels(dataset.test_images, size),
        source={},
        seconds_per_row=None,
    )


def image_dataset(images: ImageSet) -> Dataset:
    """Images without features, as they are."""
    return Dataset(
        images.name,
        "images",
        stack_pixels(images.train),
        images.y_train,
        stack_pixels(images.test),
        images.y_test,
        images=images.train,
        test_images=images.test,
    )


def _squared(image: NDArray[np.uint8], size: int | None) -> NDArray[Any]:
    if size is None or image.shape[:2] == (size, size):
        return image
    from PIL import Image

    resized = Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(resized)
