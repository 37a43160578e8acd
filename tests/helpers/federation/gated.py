"""Sites with separable classes, a server with validation rows, and sites that lie."""

from dataclasses import replace

import numpy as np

import fedran
from fedran.data.rows import Rows
from fedran.federation.server.head.validation import ValidationSet
from helpers.federation.made_federation import PHI, D, Sites

CENTRES = 3 * np.random.default_rng(5).standard_normal((6, D))


def gated_sites():
    return Sites(*(f"site-{i}" for i in range(1, 6)))


def store_of(sites, folder):
    return sites.store(folder)


def rows(seed, classes, n=30):
    rng = np.random.default_rng([*np.ravel(seed), *classes])
    y = rng.choice(classes, n)
    return Rows(CENTRES[y] + rng.standard_normal((n, D)), [int(c) for c in y])


VALIDATION = ValidationSet(rows(99, (0, 1, 2, 3, 4), 250), PHI)


def send(store, sites, client, task, given, times=1):
    """Send points of the rows, which count several times; True if they were accepted."""
    points = fedran.condense(PHI(given.X), given.y, 5, 5, PHI.fingerprint)
    blob = fedran.encode(replace(points, counts=points.counts * times))
    return store.receive(sites.envelope(client, task, blob)).outcome == "accepted"


def honest(store, sites, task, classes, who=range(1, 5)):
    assert all(send(store, sites, f"site-{i}", task, rows(10 * i, classes)) for i in who)


def flipped(given, a, b):
    return Rows(given.X, [{a: b, b: a}.get(label, label) for label in given.y])
