"""Rows of a few sites, for tests of secure sums."""

import numpy as np
from hypothesis import strategies as st

from helpers.reference import features

CLASSES = ("ant", "bee", "cat")
seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(["float32", "float64"])


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
