"""A frozen network that turns images or texts into features."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.backbones.preprocessing import Preprocessing
from fedran.core._linalg.arrays import require_finite
from fedran.core.prepare import require_nonnegative

if TYPE_CHECKING:
    import torch

Forward = Callable[[Any], NDArray[np.float32]]
"""Images (n, 3, height, width), or a list of n texts, in; features (n, d) out."""

SMALL_BATCH = 4
"""Images per batch on a CPU. Activations of larger batches do not fit into the cache: measured 139
images per second with 4, 112 with 8, 61 with 32 (EfficientNet-Lite0, two cores)."""
LARGE_BATCH = 128
"""Images per batch on a GPU."""


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen network with its preprocessing.

    The same image or text always gives the same features, up to float32 rounding, in every batch.
    """

    name: str
    """The name given by the user."""
    kind: str
    """Architecture and output, for the fingerprint. Equal networks have equal kinds."""
    out_features: int
    weights: str
    """SHA-256 over the parameters, in hex."""
    preprocess: Any
    """A ``Preprocessing`` of pixels, or a ``Reduction`` of texts."""
    forward: Forward
    nonnegative: bool = False
    """Declares that no feature is ever negative, as after a ReLU. It is checked."""
    batch_size: int = SMALL_BATCH
    """Images per batch that suit the device. The features do not depend on it."""
    takes: Literal["pixels", "text"] = "pixels"

    @property
    def source(self) -> dict[str, str]:
        """What all parties must have in common: backbone, weights, preprocessing."""
        return {
            "backbone": self.kind,
            "weights": self.weights,
            "preprocessing": str(self.preprocess),
        }

    def __call__(self, batch: Sequence[Any] | NDArray[np.float32]) -> NDArray[np.float32]:
        """Features (n, d) of n preprocessed images (3, height, width) or texts."""
        if isinstance(self.preprocess, Preprocessing):
            batch, shape = np.asarray(batch), (3, *self.preprocess.shape)
            if batch.shape[1:] != shape:
                raise ValueError(f"{self.name}: expected images (n, *{shape}), got {batch.shape}")
        features = np.asarray(self.forward(batch), dtype=np.float32)
        if features.shape != (len(batch), self.out_features):
            raise ValueError(
                f"{self.name}: expected features {(len(batch), self.out_features)}, "
                f"got {features.shape}"
            )
        require_finite(features, f"the features of {self.name}")
        self.check_sign(features)
        return features

    def check_sign(self, features: NDArray[np.float32]) -> None:
        """Refuse features that contradict ``nonnegative``."""
        if self.nonnegative:
            why = "as this backbone declares features that are never negative"
            require_nonnegative(features, f"the features of {self.name}", why)


def hash_parameters(parameters: Mapping[str, Any]) -> str:
    """SHA-256 over the names, types, shapes and bytes of torch tensors, in order of name."""
    sha = hashlib.sha256()
    for name in sorted(parameters):
        array = parameters[name].detach().cpu().contiguous().numpy()
        sha.update(f"{name} {array.dtype} {array.shape}\n".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def torch_forward(network: Callable[[torch.Tensor], torch.Tensor], device: str) -> Forward:
    """A torch function on a device as a function of arrays, without gradients.

    Images are stored channels last, which doubles the speed on a CPU. Convolutions and products
    are in full float32: with TF32, PyTorch's default for convolutions on recent GPUs, features
    differ from those of a CPU by up to 1e-3.
    """
    import torch

    def forward(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.inference_mode(), without_tf32():
            images = torch.from_numpy(batch).to(device, memory_format=torch.channels_last)
            return network(images).cpu().numpy()

    return forward


@contextmanager
def without_tf32() -> Iterator[None]:
    """Switch TF32 off in cuDNN and cuBLAS, and afterwards back to what it was.

    Who sets ``fp32_precision``, PyTorch's newer switch, has chosen: then nothing is changed,
    because PyTorch refuses to mix both.
    """
    import torch

    switches = torch.backends.cudnn, torch.backends.cuda.matmul
    try:
        before = [switch.allow_tf32 for switch in switches]
    except RuntimeError:
        yield
        return
    try:
        for switch in switches:
            switch.allow_tf32 = False
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value


def torch_device(device: str | None) -> str:
    """``device`` if PyTorch has it here. By default a GPU if there is one, else the CPU."""
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
    """Images per batch that suit the device."""
    return SMALL_BATCH if device == "cpu" else LARGE_BATCH
