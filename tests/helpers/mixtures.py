"""Rows of three classes, small feature maps, and changed mixtures."""

from dataclasses import replace

import numpy as np

from fedran.core.features import RandomFeatures

D, M = 7, 24


def rows(n=60, d=D, seed=0):
    """Features (n, d) that are never negative, and their labels 0, 1 and 2."""
    rng = np.random.default_rng(seed)
    centres = rng.random((3, d))
    y = rng.integers(0, 3, n)
    return (centres[y] + 0.3 * rng.random((n, d))).astype(np.float32), y.tolist()


def phi_of(kind="cosine", M=M, seed=0, bias=False):
    return RandomFeatures(D, M, kind=kind, seed=seed, bias=bias)


def with_part(m, **changes):
    """The mixture with fields of its only part replaced."""
    return replace(m, parts=(replace(m.parts[0], **changes),))
