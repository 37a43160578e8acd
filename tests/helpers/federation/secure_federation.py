"""A federation with secure sums in memory: real sites with folders, real rounds, no network."""

import time
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, MessageType, Metadata, RecordDict

import fedran
from fedran.federation.flower.clientapp import answer_offer, receive_results
from fedran.federation.flower.serverapp import FlowerNetwork
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.masking.attempt import Request
from fedran.federation.secure.server.secure_round import SecureRound
from fedran.federation.secure.site.pinning import PinnedRoster, roster_fingerprint
from fedran.federation.secure.site.sum_files import SumFiles
from fedran.federation.server.round.messenger import Messenger
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store.store import Store
from fedran.federation.site.app import VARIABLE
from helpers.federation.fleet import Fleet, shorten_waits
from helpers.federation.flower_messages import blobs_of

D, M, CLASSES = 6, 64, [0, 1, 2]
PHI = fedran.RandomFeatures(D, M, "cosine", seed=0, source="test")


def rows(seed, n=40):
    """Features and labels of one site."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, len(CLASSES), n)
    y[:15] = np.arange(15) % 3
    return rng.standard_normal((n, D)) + 2 * np.eye(D)[y], y


class Clock:
    """Stands for the module ``time`` at the server: its time passes only while the server sleeps.

    So a slow machine never makes a site late.
    """

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, _seconds):
        self.now += 0.1

    def install(self, monkeypatch):
        for module in ("secure.server.secure_round", "server.round.messenger"):
            monkeypatch.setattr(f"fedran.federation.{module}.time", self)
        monkeypatch.setattr("fedran.federation.server.round.messenger.SLOW_SECONDS", 0.25)


class SecureFederation:
    """Sites 1 to n in ``folder/sites``, and a server in ``folder/server``."""

    def __init__(self, folder: Path, monkeypatch, n=3, tasks=("may", "june")):
        shorten_waits(monkeypatch)
        self.clock = Clock()
        self.clock.install(monkeypatch)
        self.folder, self.names = folder, [f"site-{i}" for i in range(1, n + 1)]
        self.data = {}
        for i, name in enumerate(self.names):
            place = folder / "sites" / name
            (place / "data").mkdir(parents=True)
            SiteKey.generate().save(place / "site.key")
            (place / "site.toml").write_text(
                f'federation = "trial"\nclient = "{name}"\nfolder = "data"\nprivacy = "secure"\n'
            )
            for t, task in enumerate(tasks):
                self.put(name, task, *rows(100 * t + i))
        self.server = folder / "server"
        self.server.mkdir()
        (self.server / "server.toml").write_text(
            f'federation = "trial"\nin_features = {D}\nout_features = {M}\nsource = "test"\n'
            f'privacy = "secure"\nclasses = {CLASSES}\n'
        )
        self.set_roster(self.names)
        monkeypatch.setenv(VARIABLE, str(folder / "sites"))

    def put(self, name, task, X, y):
        """The rows of a site for a task."""
        self.data[name, task] = X, y
        np.savez(self.folder / "sites" / name / "data" / f"{task}.npz", features=X, labels=y)

    def remove(self, name, task):
        del self.data[name, task]
        (self.folder / "sites" / name / "data" / f"{task}.npz").unlink()

    def state(self, name):
        return self.folder / "sites" / name / "state"

    def files(self, name):
        return SumFiles(self.state(name))

    def set_roster(self, names, pin=True):
        keys = {n: SiteKey.load(self.folder / "sites" / n / "site.key").public for n in names}
        Roster(keys).save(self.server / "roster.toml")
        for name in names if pin else ():
            PinnedRoster(self.state(name)).pin(keys, roster_fingerprint(keys))

    def settings(self, deadline=1.0, **changes):
        fields = {
            "out_features": M,
            "kind": "cosine",
            "source": "test",
            "classes": CLASSES,
        }
        found = ServerSettings("trial", D, **{**fields, "privacy": "secure", **changes})
        object.__setattr__(found, "deadline", deadline)
        if "exchange_seconds" not in changes:
            object.__setattr__(found, "exchange_seconds", 1.0)
        return found

    @contextmanager
    def store(self, **changes):
        with closing(Store.open(self.server, self.settings(**changes))) as store:
            yield store

    def node(self, name, tamper=None):
        """A site as a node: a function from a message to the content of its answer.

        ``tamper(message, answer)`` returns another answer, or None for none at all.
        """
        number = sorted(self.names).index(name)

        def answer(message):
            app = answer_offer if message.metadata.message_type == "train" else receive_results
            now = time.time()
            about = Metadata(1, "m", 1, 2, "", "", now, 60.0, "train", src_task_id=1, dst_task_id=1)
            here = Context(1, 2, {"partition-id": number}, RecordDict(), {})
            reply = app(Message(content=message.content, metadata=about), here)
            assert not reply.has_error()
            return reply.content

        return (
            answer if tamper is None else lambda message: tamper(message, lambda: answer(message))
        )

    def run(self, task, names=None, nodes=None, **changes):
        """One run of the server's app over some sites."""
        wanted = self.names if names is None else names
        nodes = nodes or {10 + self.names.index(n): self.node(n) for n in wanted}
        with self.store(**changes) as store:
            self.round = SecureRound(Messenger(FlowerNetwork(Fleet(nodes))), store)
            return self.round.run(task)

    def exact(self, task, names=None):
        """The summary of all rows of some sites, as one site would make it."""
        parts = [self.data[n, task] for n in names or self.names]
        X, y = (np.concatenate([p[i] for p in parts]) for i in (0, 1))
        return fedran.summarize(PHI(X), y, rank=None, fingerprint=PHI.fingerprint)


class PrivateFederation(SecureFederation):
    """Sites that accept any epsilon, so that few rows suffice for a classifier."""

    def __init__(self, folder, monkeypatch, **options):
        super().__init__(folder, monkeypatch, **options)
        for name in self.names:
            self.set_site(name, max_epsilon=1000.0)

    def set_site(self, name, privacy="dp", **limits):
        lines = [f"{key} = {value}" for key, value in limits.items()]
        text = [
            'federation = "trial"',
            f'client = "{name}"',
            'folder = "data"',
            f'privacy = "{privacy}"',
            *lines,
        ]
        (self.folder / "sites" / name / "site.toml").write_text("\n".join(text) + "\n")

    def settings(self, deadline=0.3, **changes):
        changes = {"epsilon": 1000.0, "max_rows": 200, **changes}
        fields = {"out_features": D, "source": "test", "classes": CLASSES}
        found = ServerSettings("trial", D, **fields, privacy="dp", **changes)
        object.__setattr__(found, "deadline", deadline)
        object.__setattr__(found, "exchange_seconds", 0.3)
        return found

    def write_settings(self, **budget):
        lines = [f"{key} = {value!r}" for key, value in budget.items()]
        (self.server / "server.toml").write_text(
            f'federation = "trial"\nin_features = {D}\nout_features = {D}\nclasses = {CLASSES}\n'
            'source = "test"\nprivacy = "dp"\n' + "\n".join(lines)
        )

    def learned(self, **changes):
        with self.store(**changes) as store:
            return store.aggregator.counts, store.database.ledger(), store.database.uploads()


def requests_in(message):
    """The requests of secure sums in a message."""
    if message.metadata.message_type != MessageType.TRAIN:
        return []
    return [Request.read(blob) for blob in blobs_of(message).values()]


def deaf(stage, attempt=1):
    """A site that never answers one stage of one attempt."""

    def tamper(message, answer):
        found = [(r.stage, r.attempt.number) for r in requests_in(message)]
        return None if (stage, attempt) in found else answer()

    return tamper
