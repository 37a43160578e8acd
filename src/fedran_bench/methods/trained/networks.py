"""The networks that methods train: ResNet-18 with either stem, a small CNN, a head alone.

The parameters of ResNet-18 have the names of common weight files, so that these can be loaded.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Name = Literal["head", "small", "resnet18", "resnet18-7x7"]


class Network(nn.Module):
    """A body that embeds rows (n, d) and a linear head over the classes seen so far."""

    def __init__(self, body: nn.Module, out_features: int) -> None:
        super().__init__()
        self.body, self.out_features = body, out_features
        self.head = Head(out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, C)."""
        return self.head(self.body(x))


class Head(nn.Module):
    """A linear layer whose number of classes can change."""

    def __init__(self, in_features: int, classes: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes, in_features))
        self.bias = nn.Parameter(torch.zeros(classes))

    def resize(self, classes: int) -> None:
        """Set the number of classes. If it changes, the weights become zero."""
        if classes != len(self.bias):
            self.weight = nn.Parameter(self.weight.new_zeros(classes, self.weight.shape[1]))
            self.bias = nn.Parameter(self.bias.new_zeros(classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return F.linear(x, self.weight, self.bias)


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of the sum of both paths."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet18(nn.Module):
    """Four stages of two blocks. Stem 3 keeps the image size, stem 7 quarters it."""

    def __init__(self, stem: Literal[3, 7]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, stem, 1 if stem == 3 else 2, stem // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.pool = nn.Identity() if stem == 3 else nn.MaxPool2d(3, 2, 1)
        widths = (64, 64, 128, 256, 512)
        for i in range(1, 5):
            first = Block(widths[i - 1], widths[i], 1 if i == 1 else 2)
            stage = nn.Sequential(first, Block(widths[i], widths[i], 1))
            setattr(self, f"layer{i}", stage)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, h, w) -> (n, 512)."""
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        for i in range(1, 5):
            x = getattr(self, f"layer{i}")(x)
        return x.mean((2, 3))


class SmallCNN(nn.Module):
    """Three convolutions, for images of 8 x 8 pixels and for tests."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 64)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(widths[i], widths[i + 1], 3, padding=1, bias=False),
                    nn.BatchNorm2d(widths[i + 1]),
                    nn.ReLU(),
                    nn.MaxPool2d(2) if i < 2 else nn.Identity(),
                )
                for i in range(3)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, h, w) -> (n, 64)."""
        return self.layers(x).mean((2, 3))


def build(name: Name, in_features: int) -> Network:
    """A network without classes. ``in_features`` matters for ``head`` only."""
    match name:
        case "head":
            return Network(nn.Identity(), in_features)
        case "small":
            return Network(SmallCNN(), 64)
        case "resnet18":
            return Network(ResNet18(3), 512)
        case "resnet18-7x7":
            return Network(ResNet18(7), 512)


def initialise(network: Network, seed: int) -> None:
    """Random weights by the seed: normal for convolutions, uniform for the head (He et al.)."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            spread = math.sqrt(2.0 / (module.out_channels * math.prod(module.kernel_size)))
            fresh = torch.randn(module.weight.shape, generator=generator)
            with torch.no_grad():
                module.weight.copy_(spread * fresh)
        elif isinstance(module, Head):
            bound = math.sqrt(3.0 / module.weight.shape[1])
            fresh = torch.rand(module.weight.shape, generator=generator)
            with torch.no_grad():
                module.weight.copy_(bound * (2 * fresh - 1))
                module.bias.zero_()
        elif isinstance(module, nn.BatchNorm2d):
            for ones, zeros in (
                (module.weight, module.bias),
                (module.running_var, module.running_mean),
            ):
                nn.init.ones_(ones)
                nn.init.zeros_(zeros)
