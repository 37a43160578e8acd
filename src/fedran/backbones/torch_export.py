"""A feature map and a head as one torch module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import to_numpy
from fedran.core.errors import MissingExtra
from fedran.core.features import RandomFeatures
from fedran.core.fingerprint import require_same
from fedran.core.head import Head

if TYPE_CHECKING:
    import torch


def to_torch(head: Head, phi: RandomFeatures) -> torch.nn.Module:
    """A frozen ``torch.nn.Sequential``: backbone features Z (n, d) in, scores (n, C) out.

    Column j of the output scores ``head.classes[j]``. It holds P and W as parameters that do
    not require gradients, so it can be put behind a backbone, moved, scripted and exported.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtra("to_torch needs PyTorch", "torch") from None
    if head.fingerprint is not None:
        require_same(phi.fingerprint, head.fingerprint, "feature map and head")
    if head.out_features != phi.out_features:
        raise ValueError(
            f"phi makes {phi.out_features} features, the head takes {head.out_features}"
        )
    layers = [_linear(phi.projection), torch.nn.ReLU(), _linear(to_numpy(head.weights))]
    return torch.nn.Sequential(*layers).requires_grad_(False)


def _linear(matrix: NDArray[Any]) -> torch.nn.Linear:
    import torch

    layer = torch.nn.Linear(*matrix.shape, bias=False)
    layer.weight.data = torch.from_numpy(np.ascontiguousarray(matrix.T, dtype=np.float32))
    return layer
