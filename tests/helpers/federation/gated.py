"""Sites with separable classes, a server with validation rows, and sites that lie."""

import numpy as np

import fedran
from fedran.data.rows import Rows
from fedran.federation.server.head.gate import ValidationSet
from helpers.federation.made_federation import D, M, Sites, repeated

PHI = fedran.RandomFeatures(D, M, "cosine", seed=0, source="test")
CENTRES = 3 * np.random.default_rng(5).standard_normal((6, D))


def gated_sites():
    return Sites(*(f"site-{i}" for i in range(1, 6)))


def store_of(sites, folder):
    return sites.store(folder, kind="cosine")


def rows(seed, classes, n=30):
    rng = np.random.default_rng([seed, *classes])
    y = rng.choice(classes, n)
    return Rows(CENTRES[y] + rng.standard_normal((n, D)), [int(c) for c in y])


VALIDATION = ValidationSet(rows(99, (0, 1, 2, 3, 4), 250), PHI)


def send(store, sites, client, task, given, times=1):
    """Send a summary of the rows; True if it was accepted."""
    s = fedran.summarize(PHI(given.X), given.y, 8, fingerprint=PHI.fingerprint)
    blob = fedran.encode(repeated(s, times))
    said = {"fingerprint": PHI.fingerprint.hash}
    return store.receive(sites.envelope(client, task, blob, **said)).outcome == "accepted"


def honest(store, sites, task, classes, who=range(1, 5)):
    assert all(send(store, sites, f"site-{i}", task, rows(10 * i, classes)) for i in who)


def flipped(given, a, b):
    return Rows(given.X, [{a: b, b: a}.get(label, label) for label in given.y])
