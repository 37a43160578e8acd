"""A feature map and a head as one torch module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import to_numpy
from fedran.core.errors import MissingExtra
from fedran.core.features import RandomFeatures
from fedran.core.fingerprint import require_same, require_scaler
from fedran.core.head import Head

if TYPE_CHECKING:
    import torch

    from fedran.scaler import FederatedScaler


def to_torch(
    head: Head, phi: RandomFeatures | None = None, scaler: FederatedScaler | None = None
) -> torch.nn.Module:
    """A frozen ``torch.nn.Sequential``: backbone features Z (n, d) in, scores (n, C) out.

    Column j of the output scores ``module.classes[j]``. It holds P and W as parameters that do
    not require gradients, so it can be put behind a backbone, moved and exported. ``phi`` is by
    default the feature map that the head's fingerprint describes. A head that was fitted on scaled
    rows needs its ``scaler``, which becomes the first step of the module.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtra("to_torch needs PyTorch", "torch") from None
    phi = map_of(head, phi)
    require_scaler(head.fingerprint, scaler.fingerprint_ if scaler is not None else None)
    activation = torch.nn.ReLU() if phi.kind == "relu" else torch.nn.GELU()
    projection = [_linear(phi.projection), activation] if phi.projected else []
    layers = [*projection, _linear(to_numpy(head.weights))]
    if phi.kind != "relu" or phi.bias:
        layers.insert(0, _prepare(phi))
    if scaler is not None:
        layers.insert(0, _scale(scaler))
    module = torch.nn.Sequential(*layers).requires_grad_(False)
    module.classes = head.classes
    return module


def map_of(head: Head, phi: RandomFeatures | None) -> RandomFeatures:
    """The feature map of a head: ``phi`` if it fits, or that of the head's fingerprint."""
    if not isinstance(head, Head):
        got = type(head).__name__
        raise TypeError(f"head must be a Head, got {got}; an estimator has one, clf.head_")
    if phi is None:
        if head.fingerprint is None:
            raise ValueError("the head does not identify its feature map; pass phi")
        return RandomFeatures.from_fingerprint(head.fingerprint)
    if not isinstance(phi, RandomFeatures):
        raise TypeError(f"phi must be a RandomFeatures, got {type(phi).__name__}")
    if head.fingerprint is not None:
        require_same(phi.fingerprint, head.fingerprint, "feature map and head")
    if head.out_features != phi.out_features:
        raise ValueError(
            f"phi makes {phi.out_features} features, the head takes {head.out_features}"
        )
    return phi


def _prepare(phi: RandomFeatures) -> torch.nn.Module:
    """``phi.prepare`` as a layer, without its refusal: a negative value gives NaN under a root."""
    import torch

    class Prepare(torch.nn.Module):  # type: ignore[misc]
        hellinger: bool = phi.kind == "hellinger"
        unit_norm: bool = phi.kind != "relu"
        bias: bool = phi.bias
        constant: float = phi.in_features**0.5

        def forward(self, Z: torch.Tensor) -> torch.Tensor:
            if self.hellinger:
                Z = torch.sqrt(Z)
            if self.bias:
                Z = torch.nn.functional.pad(Z, [0, 1], value=self.constant)
            if self.unit_norm:
                largest = torch.amax(torch.abs(Z), dim=1, keepdim=True)
                Z = Z / torch.where(largest > 0, largest, 1.0)
                norms = torch.linalg.vector_norm(Z, dim=1, keepdim=True)
                Z = Z / torch.where(norms > 0, norms, 1.0)
            return Z

    return Prepare()


def _scale(scaler: FederatedScaler) -> torch.nn.Module:
    """``scaler.transform`` as a layer."""
    import torch

    class Scale(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.asarray(scaler.mean_, dtype=torch.float32))
            self.register_buffer("scale", torch.asarray(scaler.scale_, dtype=torch.float32))

        def forward(self, X: torch.Tensor) -> torch.Tensor:
            return (X - self.mean) / self.scale

    return Scale()


def _linear(matrix: NDArray[Any]) -> torch.nn.Linear:
    import torch

    layer = torch.nn.Linear(*matrix.shape, bias=False)
    layer.weight.data = torch.from_numpy(np.ascontiguousarray(matrix.T, dtype=np.float32))
    return layer
