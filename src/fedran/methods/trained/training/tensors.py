"""Rows as tensors: labelled rows of a client, pixels made into inputs, random crops and flips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import require_finite
from fedran.core.errors import Refused
from fedran.core.labels import Label, encode_labels
from fedran.methods.protocol import ClientData
from fedran.methods.trained.training.lazy_torch import Tensor, torch

MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's pixels, the convention of published weights; for every dataset."""
PIXELS_OF_PADDING = 4
"""For images of 32 pixels and more; smaller ones get an eighth of their size."""


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


def as_tensor(X: NDArray[Any], device: str) -> Tensor:
    """Features as they are, images with their channels first."""
    if X.ndim == 4:
        return torch.tensor(np.ascontiguousarray(X.transpose(0, 3, 1, 2)), device=device)
    require_finite(X, "X")
    return torch.tensor(X, dtype=torch.float32, device=device)


def client_rows(data: ClientData, classes: tuple[Label, ...], device: str) -> Rows:
    """A client's labelled rows; a label that is not among ``classes`` is refused."""
    present, codes = encode_labels(data.y, len(data.X))
    unknown = set(present) - set(classes)
    if unknown:
        raise Refused("labels", "classes that the server announced", sorted(map(str, unknown))[:5])
    number = np.array([classes.index(c) for c in present], dtype=np.int64)
    kept = np.flatnonzero(codes >= 0)
    X = as_tensor(data.X, device)  # rows without a label are checked too
    return Rows(
        X[torch.tensor(kept, device=device)],
        torch.tensor(number[codes[kept]] if len(kept) else kept, device=device),
    )


def inputs(X: Tensor) -> Tensor:
    """What a network takes: features, or pixels of mean 0 and spread 1."""
    if X.dtype != torch.uint8:
        return X
    return normalised(X.float() / 255.0)


def normalised(X: Tensor) -> Tensor:
    """Pixels in 0 .. 1 (n, 3, h, w), shifted and scaled a channel, channels last in memory."""
    mean, spread = (torch.tensor(v, device=X.device).view(1, 3, 1, 1) for v in (MEAN, SPREAD))
    return ((X - mean) / spread).contiguous(memory_format=torch.channels_last)


def augmented(X: Tensor, generator: Any) -> Tensor:
    """Images shifted by a few pixels (black comes in) and flipped at random, each by itself.

    One gather for the whole batch; features are left alone.
    """
    if X.ndim != 4:
        return X
    n, _, h, w = X.shape
    pad = min(PIXELS_OF_PADDING, h // 8)
    dy, dx = (torch.randint(0, 2 * pad + 1, (n, 1), generator=generator) for _ in range(2))
    flip = torch.rand((n, 1), generator=generator) < 0.5
    columns = torch.arange(w).expand(n, w)
    columns = torch.where(flip, w - 1 - columns, columns) + dx
    rows = torch.arange(h).expand(n, h) + dy
    padded = torch.nn.functional.pad(X, (pad, pad, pad, pad))
    place = (
        torch.arange(n)[:, None, None, None],
        torch.arange(3)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    )
    return padded[tuple(p.to(X.device) for p in place)]
