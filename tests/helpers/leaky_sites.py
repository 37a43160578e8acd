"""Rows of one site and rows of nobody, from the same classes, for attacks on messages."""

from typing import NamedTuple

import numpy as np

import fedran


class World(NamedTuple):
    Z: np.ndarray
    y: np.ndarray
    other: np.ndarray
    other_y: np.ndarray
    phi: fedran.RandomFeatures


def world(counts=(12, 20, 8), others=80, d=16, M=160, kind="cosine", seed=0):
    """Normal classes around means of about the same length as their spread."""
    rng = np.random.default_rng(seed)
    centres = 1.5 * rng.standard_normal((len(counts), d))

    def draw(n, c):
        rows = centres[c] + rng.standard_normal((n, d))
        return np.abs(rows) if kind == "hellinger" else rows

    Z = np.concatenate([draw(n, c) for c, n in enumerate(counts)])
    other = np.concatenate([draw(others, c) for c in range(len(counts))])
    y, other_y = (np.repeat(range(len(counts)), n) for n in (counts, others))
    return World(Z, y, other, other_y, fedran.RandomFeatures(d, M, kind))


def summary(w, rank=None, center="class"):
    return fedran.summarize(w.phi(w.Z), w.y, rank, center=center, fingerprint=w.phi.fingerprint)
