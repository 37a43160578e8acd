"""Images row by row: as they would travel, and as pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Images(Protocol):
    """A sequence of images on disk or in memory; nothing is decoded before it is asked for."""

    def __len__(self) -> int:
        """How many."""
        ...

    def encoded(self, i: int) -> bytes:
        """Image i as it would travel: the bytes of its file, or its raw pixels."""
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
