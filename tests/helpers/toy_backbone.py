"""A small backbone and small images for the tests of the store."""

import numpy as np

from fedran.backbones.backbone import Backbone
from fedran.backbones.preprocessing import Preprocessing


class Rows:
    def __init__(self, arrays):
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays)

    def encoded(self, i):
        return self.arrays[i].tobytes()

    def pixels(self, i):
        return self.arrays[i]


class Pictures:
    """Training and test images; every tenth training image occurs twice."""

    name, values, skipped = "toy set", None, {}

    def __init__(self, n=50, m=20, seed=0):
        rng = np.random.default_rng(seed)
        arrays = rng.integers(0, 256, (n + m, 4, 4, 3), dtype=np.uint8)
        arrays[1:n:10] = arrays[0:n:10]
        self.train, self.test = Rows(arrays[:n]), Rows(arrays[n:])
        self.y_train, self.y_test = np.arange(n) % 3, np.arange(m) % 3
        self.distinct = len({a.tobytes() for a in arrays})


def toy(weights="0" * 64, factor=1.0):
    """A backbone that sums each channel, and a list of the batch sizes it computed."""
    computed = []

    def forward(batch):
        computed.append(len(batch))
        return factor * batch.sum(axis=(2, 3))

    p = Preprocessing((4, 4), mean=(0, 0, 0), std=(255, 255, 255))
    return Backbone("toy", "toy", 3, weights, p, forward), computed


def expected(images, factor=1.0):
    return [
        factor * np.stack([p.pixels(i).sum(axis=(0, 1)) / 255 for i in range(len(p))])
        for p in (images.train, images.test)
    ]
