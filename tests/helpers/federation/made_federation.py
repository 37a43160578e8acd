"""A small federation in memory: settings, sites with keys, uploads of random rows."""

import hashlib
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

import fedran
from fedran.federation.protocol.identity import SiteKey, Statement
from fedran.federation.protocol.messages import Envelope, seal
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store.store import Store

M, D = 48, 6
PHI = fedran.KernelFeatures(D, source="test")
SETTINGS = ServerSettings("trial", D, source="test", trusted=True)
RANDOM = fedran.RandomFeatures(D, M, seed=0, source="test")
SUMS = {"privacy": "secure", "out_features": M, "classes": list(range(10))}
"""Settings of a federation of secure sums."""


def upload(seed, classes=(0, 1), n=20, group_size=5, min_group=5, phi=PHI):
    """Encoded points."""
    y = np.resize(np.array(classes, dtype=object), n).tolist()
    rows = phi(np.random.default_rng(seed).random((n, phi.in_features)))
    return fedran.encode(fedran.condense(rows, y, group_size, min_group, phi.fingerprint))


def large(seed):
    """Points that do not fit into a page of the database, because their labels are long."""
    return upload(seed, [f"{n:03}{'x' * 250}" for n in range(20)], n=100)


def summary(seed, classes=(0, 1), scale=1.0, phi=RANDOM, n=20):
    """An encoded summary, as that of a secure sum."""
    rng = np.random.default_rng(seed)
    Z = scale * rng.random((n, D))
    y = rng.choice(classes, n)
    y[: len(classes)] = classes
    return fedran.encode(fedran.summarize(phi(Z), y, rank=8, fingerprint=phi.fingerprint))


def hash_of(data):
    """Of the feature map that made an upload; that of points if it is none."""
    try:
        return fedran.decode(data).fingerprint.hash
    except (fedran.Refused, AttributeError):
        return PHI.fingerprint.hash


class Sites:
    """Sites with their keys, and the server's key and roster."""

    def __init__(self, *names):
        self.keys = {name: SiteKey.generate() for name in names}
        self.server = SiteKey.generate()
        clients = {name: key.public for name, key in self.keys.items()}
        self.roster = Roster(clients, server_key=self.server.public)

    def envelope(self, client, task, data=None, *, key=None, **changes):
        """A signed upload, by default of points."""
        data = upload(sum(map(ord, client + task))) if data is None else data
        said = {"federation": "trial", "fingerprint": hash_of(data), **changes}
        signer = self.keys[client] if key is None else key
        return seal(data, signer, client=client, task=task, **said).to_bytes()

    def secure_sum(self, number, task, members, data=None, key=None):
        """A secure sum over these sites, signed by the server."""
        cohort, features = f"cohort-{number}", RANDOM.fingerprint.hash
        data = summary(sum(map(ord, cohort + task))) if data is None else data
        digest, listed = hashlib.sha256(data).hexdigest(), tuple((m, task) for m in members)
        said = Statement("trial", cohort, task, features, digest, listed, sum_number=number)
        return Envelope(said, (key or self.server).sign(said), data).to_bytes()

    def store(self, folder, **changes):
        return Store(folder, replace(SETTINGS, **changes), self.roster)


@contextmanager
def full_disk(database):
    """A disk on which the database cannot grow."""
    database.sql.execute("PRAGMA max_page_count = 1")
    try:
        yield
    finally:
        database.sql.execute("PRAGMA max_page_count = 1000000")


def same_state(a, b):
    """Bit for bit."""
    first, second = ((fedran.encode(s.aggregator), list(s.state.uploads)) for s in (a, b))
    return first == second
