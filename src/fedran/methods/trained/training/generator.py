"""TARGET's generator: noise in, images of the teacher's classes out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NOISE = 256


class Generator(nn.Module):
    """z (n, 256) -> images (n, 3, s, s) in 0 .. 1, by two doublings from s / 4."""

    def __init__(self, size: int, noise: int = NOISE, width: int = 128) -> None:
        super().__init__()
        self.start = size // 4
        self.width = width
        self.first = nn.Linear(noise, width * self.start**2)
        self.layers = nn.Sequential(
            nn.BatchNorm2d(width),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, width // 2, 3, padding=1, bias=False),
            nn.BatchNorm2d(width // 2),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width // 2, 3, 3, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, z: Tensor) -> Tensor:
        """Images."""
        x = self.first(z).view(len(z), self.width, self.start, self.start)
        return self.layers(x)


def seeded_generator(size: int, seed: int) -> Generator:
    """A generator whose first weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Generator(size)
