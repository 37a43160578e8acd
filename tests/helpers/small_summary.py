"""A summary of a few rows, and the kinds of aggregators that it is given to."""

import numpy as np

from fedran.core.summarize import summarize
from helpers.reference import features

MODES = [{}, {"dtype": "float64"}]
"""Settings of aggregators."""


def summary(seed=0, n=6, M=8, labels=(0, 1, "a"), **options):
    rng = np.random.default_rng(seed)
    y = [labels[i % len(labels)] for i in range(n)]
    return summarize(features(rng, n, M), y, **options)
