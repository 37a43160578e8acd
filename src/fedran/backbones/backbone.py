"""A frozen network that turns images into features."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedran.backbones.preprocessing import Preprocessing
from fedran.core._linalg.arrays import require_finite

if TYPE_CHECKING:
    import torch

Forward = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Images (n, 3, height, width) in, features (n, d) out."""

SMALL_BATCH = 4
"""On a CPU the activations of more images leave the cache: measured 139 images a second with 4,
112 with 8, 61 with 32 (EfficientNet-Lite0, two cores)."""
LARGE_BATCH = 128
"""On a GPU."""


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen network with its preprocessing; the same image always gives the same features.

    To float32 rounding, whatever the batch it comes in.
    """

    name: str
    """What the user called it."""
    kind: str
    """What goes into the fingerprint: architecture and output, equal for equal networks."""
    out_features: int
    weights: str
    """SHA-256 over the parameters, in hex."""
    preprocess: Preprocessing
    forward: Forward
    batch_size: int = SMALL_BATCH
    """How many images at once suit the device; any other number gives the same features."""

    @property
    def source(self) -> dict[str, str]:
        """What two parties must share: backbone, weights, preprocessing."""
        return {
            "backbone": self.kind,
            "weights": self.weights,
            "preprocessing": str(self.preprocess),
        }

    def __call__(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features (n, d) of preprocessed images (n, 3, height, width)."""
        shape = (3, *self.preprocess.shape)
        if batch.shape[1:] != shape:
            raise ValueError(f"{self.name}: expected images (n, *{shape}), got {batch.shape}")
        features = np.asarray(self.forward(batch), dtype=np.float32)
        if features.shape != (len(batch), self.out_features):
            raise ValueError(
                f"{self.name}: expected features {(len(batch), self.out_features)}, "
                f"got {features.shape}"
            )
        require_finite(features, f"the features of {self.name}")
        return features


def hash_parameters(parameters: Mapping[str, Any]) -> str:
    """SHA-256 over the names, types, shapes and bytes of torch tensors, in order of name."""
    sha = hashlib.sha256()
    for name in sorted(parameters):
        array = parameters[name].detach().cpu().contiguous().numpy()
        sha.update(f"{name} {array.dtype} {array.shape}\n".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def torch_forward(network: Callable[[torch.Tensor], torch.Tensor], device: str) -> Forward:
    """A torch function on a device, as a function of arrays, without gradients.

    Images lie in memory channel by channel within a pixel, which doubles the speed on a CPU.
    """
    import torch

    def forward(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.inference_mode():
            images = torch.from_numpy(batch).to(device, memory_format=torch.channels_last)
            return network(images).cpu().numpy()

    return forward


def torch_device(device: str | None) -> str:
    """The device asked for, checked; without one, the GPU where there is one."""
    import torch

    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as reason:
        first = str(reason).splitlines()[0]
        raise ValueError(
            f"device: expected one that PyTorch has here, got {device!r}: {first}"
        ) from None
    return device


def suitable_batch(device: str) -> int:
    """How many images at once suit the device."""
    return SMALL_BATCH if device == "cpu" else LARGE_BATCH
