"""Rows, summaries and points for tests of the core."""

import numpy as np
from hypothesis import strategies as st

from fedran.core.features import RandomFeatures
from fedran.core.summarize import summarize
from helpers.core.reference import features

D, M = 7, 24
MODES = [{}, {"dtype": "float64"}]
"""Settings of aggregators."""
CLASSES = ("ant", "bee", "cat")
seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(["float32", "float64"])


def rows(n=60, d=D, seed=0):
    """Features (n, d) that are never negative, and their labels 0, 1 and 2."""
    rng = np.random.default_rng(seed)
    centres = rng.random((3, d))
    y = rng.integers(0, 3, n)
    return (centres[y] + 0.3 * rng.random((n, d))).astype(np.float32), y.tolist()


def phi_of(kind="cosine", M=M, seed=0, bias=False):
    return RandomFeatures(D, M, kind=kind, seed=seed, bias=bias)


def summary(seed=0, n=6, M=8, labels=(0, 1, "a"), **options):
    rng = np.random.default_rng(seed)
    y = [labels[i % len(labels)] for i in range(n)]
    return summarize(features(rng, n, M), y, **options)


@st.composite
def sites(draw):
    """Rows and labels of up to four sites, some of which may have none."""
    rng = np.random.default_rng(draw(seeds))
    M = draw(st.integers(1, 14))
    counts = draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    decay = draw(st.sampled_from([0.0, 0.7]))
    return M, [(features(rng, n, M, decay), rng.choice(CLASSES, n).tolist()) for n in counts]


def pooled(parts):
    return np.concatenate([H for H, _ in parts]), [c for _, y in parts for c in y]
