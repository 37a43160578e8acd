"""A small federation in memory: settings, sites with keys, uploads of random rows."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np

import fedran
from fedran.core.summary import combine
from fedran.federation.protocol.identity import SUM, Proof, SiteKey
from fedran.federation.protocol.messages import seal
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store import Store

M, D = 48, 6
PHI = fedran.RandomFeatures(D, M, "relu", seed=0, source="test")
SETTINGS = ServerSettings("trial", D, M, "relu", source="test")


def upload(seed, classes=(0, 1), scale=1.0, phi=PHI, n=20, sites=1):
    """An encoded summary; of several sites with the same rows where ``sites`` is not 1."""
    rng = np.random.default_rng(seed)
    Z = scale * rng.random((n, D))
    y = rng.choice(classes, n)
    y[: len(classes)] = classes
    summary = fedran.summarize(phi(Z), y, rank=8, fingerprint=phi.fingerprint)
    return fedran.encode(combine([summary] * sites, 8) if sites > 1 else summary)


class Sites:
    """Sites with their keys, and the server's roster: "edge" and "inner" may sum all others'."""

    def __init__(self, *names):
        self.keys = {name: SiteKey.generate() for name in names}
        edges = {e: tuple(n for n in names if n != e) for e in ("edge", "inner") if e in names}
        self.roster = Roster({name: key.public for name, key in self.keys.items()}, edges)

    def envelope(self, client, task, data=None, *, key=None, members=(), **changes):
        """A signed upload; ``members`` are those of a sum, for whom an upload each is signed."""
        said = {"federation": "trial", "fingerprint": PHI.fingerprint.hash, **changes}
        if data is None:
            sites = sum(SUM not in name for _, name in members) or 1
            data = upload(sum(map(ord, client + task)), sites=sites)
        said["proofs"] = tuple(
            self.proof(*member, fingerprint=said["fingerprint"]) for member in members
        )
        signer = self.keys[client] if key is None else key
        return seal(data, signer, client=client, task=task, **said).to_bytes()

    def proof(self, client, task, key=None, fingerprint=PHI.fingerprint.hash):
        """What a site signs about an upload of its own."""
        signer = key or self.keys.get(client) or SiteKey.generate()
        said = {"federation": "trial", "fingerprint": fingerprint}
        envelope = seal(f"rows of {client}".encode(), signer, client=client, task=task, **said)
        return Proof(envelope.statement, envelope.signature)

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
