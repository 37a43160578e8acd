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
    prepared: fedran.KernelFeatures


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
    prepared = fedran.KernelFeatures(d, "cosine" if kind == "relu" else kind)
    return World(Z, y, other, other_y, fedran.RandomFeatures(d, M, kind), prepared)


def summary(w, rank=None, center="class"):
    return fedran.summarize(w.phi(w.Z), w.y, rank, center=center, fingerprint=w.phi.fingerprint)


def points(w, group_size=1, min_group=1):
    phi = w.prepared
    return fedran.condense(phi(w.Z), w.y, group_size, min_group, phi.fingerprint)


def head(*messages, **options):
    """The head of messages, as a site decodes it."""
    server = fedran.Aggregator(fingerprint=messages[0].fingerprint)
    for i, message in enumerate(messages):
        server.absorb(message, client=f"site-{i}", task="t")
    return fedran.decode(fedran.encode(server.solve(**options)))
