"""A client's rows as tensors: features or images, normalised, shifted and flipped.

Images are (n, 3, height, width) in uint8 until a network takes them. Random numbers always come
from a generator on the CPU, so that every device sees the same crops and flips.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import require_finite
from fedran.core.errors import Refused
from fedran.core.labels import Label, encode_labels
from fedran_bench.methods.protocol import ClientData
from fedran_bench.methods.trained.lazy_torch import Tensor, torch

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Pixel statistics of ImageNet, used for every dataset, as published weights expect."""
PADDING = 4
"""Pixels, for images of 32 pixels and more. Smaller ones are padded by an eighth of their size."""


@dataclass(frozen=True)
class Rows:
    """Features (n, d) in float32 or images (n, 3, h, w) in uint8, with class numbers (n,)."""

    X: Tensor
    codes: Tensor

    def __len__(self) -> int:
        return len(self.codes)

    def __add__(self, other: Rows) -> Rows:
        return Rows(torch.cat([self.X, other.X]), torch.cat([self.codes, other.codes]))

    def __getitem__(self, which: Tensor) -> Rows:
        return Rows(self.X[which], self.codes[which])


@dataclass(frozen=True)
class Replay:
    """Images (n, 3, h, w) of which ``batch`` are drawn to accompany every batch of rows."""

    images: Tensor
    batch: int


def as_tensor(X: NDArray[Any], device: str) -> Tensor:
    """Finite features in float32, or images (n, h, w, 3) as uint8 (n, 3, h, w)."""
    if X.ndim == 4:
        return torch.tensor(np.ascontiguousarray(X.transpose(0, 3, 1, 2)), device=device)
    require_finite(X, "X")
    return torch.tensor(X, dtype=torch.float32, device=device)


_computed: dict[tuple[str, str, str], tuple[NDArray[Any], Any]] = {}


def once_per_task(data: ClientData, how: str, compute: Callable[[], Any]) -> Any:
    """The result of ``compute`` on a client's rows, kept while the task and ``how`` stay the same.

    ``how`` names everything else that the result depends on, such as the device.
    """
    key = (data.client, data.task, how)
    X, result = _computed.get(key, (None, None))
    if X is None or not np.array_equal(X, data.X):
        for other in [k for k in _computed if k[1:] != key[1:]]:
            del _computed[other]
        result = compute()
        _computed[key] = (data.X, result)
    return result


def client_tensor(data: ClientData, device: str) -> Tensor:
    """``as_tensor`` of a client's rows. On an accelerator they stay there for the whole task."""
    if device == "cpu":
        return as_tensor(data.X, device)
    return once_per_task(data, device, lambda: as_tensor(data.X, device))


def client_rows(
    data: ClientData, classes: tuple[Label, ...], device: str, X: Tensor | None = None
) -> Rows:
    """The labelled rows of a client. A label that is not among ``classes`` is refused.

    ``X`` replaces ``client_tensor`` where a method has computed something else from the rows.
    """
    present, codes = encode_labels(data.y, len(data.X))
    unknown = set(present) - set(classes)
    if unknown:
        raise Refused("labels", "classes that the server announced", sorted(map(str, unknown))[:5])
    number = np.array([classes.index(c) for c in present], dtype=np.int64)
    kept = np.flatnonzero(codes >= 0)
    if X is None:
        X = client_tensor(data, device)  # rows without a label are checked too
    return Rows(
        X[torch.tensor(kept, device=device)],
        torch.tensor(number[codes[kept]] if len(kept) else kept, device=device),
    )


def network_input(X: Tensor) -> Tensor:
    """Features unchanged; images as float32, normalised per channel."""
    return X if X.dtype != torch.uint8 else normalise(X.float() / 255.0)


def normalise(X: Tensor) -> Tensor:
    """Pixels in 0 .. 1, minus the mean and divided by the deviation; channels last in memory."""
    mean, std = _pixel_statistics(X.device)
    return ((X - mean) / std).contiguous(memory_format=torch.channels_last)


@lru_cache(maxsize=8)
def _pixel_statistics(device: Any) -> tuple[Tensor, Tensor]:
    """Mean and deviation (1, 3, 1, 1), copied to the device once, also for use with gradients."""
    with torch.inference_mode(False):
        mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (MEAN, STD))
    return mean, std


def augment(X: Tensor, random: Any) -> Tensor:
    """Shift each image by a few pixels, filling with black, and flip it with probability 1/2.

    Features are returned unchanged, and no random number is drawn for them.
    """
    if X.ndim != 4:
        return X
    return shift_and_flip(X, to_device_async(draw_moves(len(X), X, random), X.device))


def draw_moves(n: int, like: Tensor, random: Any) -> Tensor:
    """Shifts down and right, and flips, (3, n, 1), for ``n`` images of the size of ``like``."""
    widest = 2 * _padding(like) + 1
    shifts = [torch.randint(0, widest, (n, 1), generator=random) for _ in range(2)]
    return torch.stack([*shifts, (torch.rand((n, 1), generator=random) < 0.5).long()])


def shift_and_flip(X: Tensor, moves: Tensor) -> Tensor:
    """The images after the moves that ``draw_moves`` drew, gathered at once."""
    n, _, h, w = X.shape
    dy, dx, flip = moves
    columns = torch.arange(w, device=X.device).expand(n, w)
    columns = torch.where(flip.bool(), w - 1 - columns, columns) + dx
    rows = torch.arange(h, device=X.device).expand(n, h) + dy
    padded = torch.nn.functional.pad(X, (_padding(X),) * 4)
    return padded[
        torch.arange(n, device=X.device)[:, None, None, None],
        torch.arange(3, device=X.device)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def _padding(images: Tensor) -> int:
    return min(PADDING, images.shape[2] // 8)


def to_device_async(tensor: Tensor, device: Any) -> Tensor:
    """Copy a small CPU tensor to the device. The CPU does not wait for a copy to a GPU."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
