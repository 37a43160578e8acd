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
PHI = fedran.RandomFeatures(D, M, "relu", seed=0, source="test")
SETTINGS = ServerSettings("trial", D, M, "relu", source="test")


def upload(seed, classes=(0, 1), scale=1.0, phi=PHI, n=20):
    """An encoded summary."""
    rng = np.random.default_rng(seed)
    Z = scale * rng.random((n, D))
    y = rng.choice(classes, n)
    y[: len(classes)] = classes
    return fedran.encode(fedran.summarize(phi(Z), y, rank=8, fingerprint=phi.fingerprint))


class Sites:
    """Sites with their keys, and the server's key and roster."""

    def __init__(self, *names):
        self.keys = {name: SiteKey.generate() for name in names}
        self.server = SiteKey.generate()
        clients = {name: key.public for name, key in self.keys.items()}
        self.roster = Roster(clients, server_key=self.server.public)

    def envelope(self, client, task, data=None, *, key=None, **changes):
        """A signed upload."""
        said = {"federation": "trial", "fingerprint": PHI.fingerprint.hash, **changes}
        data = upload(sum(map(ord, client + task))) if data is None else data
        signer = self.keys[client] if key is None else key
        return seal(data, signer, client=client, task=task, **said).to_bytes()

    def secure_sum(self, number, task, members, data=None, key=None):
        """A secure sum over these sites, signed by the server."""
        cohort, features = f"cohort-{number}", PHI.fingerprint.hash
        data = upload(sum(map(ord, cohort + task))) if data is None else data
        digest, listed = hashlib.sha256(data).hexdigest(), tuple((m, task) for m in members)
        said = Statement("trial", cohort, task, features, digest, listed, sum_number=number)
        return Envelope(said, (key or self.server).sign(said), data).to_bytes()

    def store(self, folder, snapshot_every=3, **changes):
        settings = replace(SETTINGS, snapshot_every=snapshot_every, **changes)
        return Store(folder, settings, self.roster)


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
    first, second = ((fedran.encode(s.aggregator), vars(s.state.history)) for s in (a, b))
    return first == second


def repeated(summary, times):
    """The summary of the same rows, each of them several times."""
    acc = summary.accounts
    scaled = {name: getattr(acc, name) * times for name in ("n_rows", "energy", "cut")}
    bounds = {name: getattr(acc, name) * times for name in ("eps_G", "eps_G_fro")}
    counts = tuple(n * times for n in summary.counts)
    return replace(
        summary,
        factor=summary.factor * np.float32(np.sqrt(times)),
        sums=replace(summary.sums, sums=summary.class_sums * times, counts=counts),
        accounts=replace(acc, eps_quant=0.0, eps_B=0.0, **scaled, **bounds),
        digest=None,
    )
