"""Calls of a site's Flower app, whose folder holds two tasks."""

import time
from functools import partial

import numpy as np
from flwr.app import Context, Message, Metadata, RecordDict

from fedran.federation.flower.clientapp import answer
from fedran.federation.flower.records import make_record
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.messages import PROTOCOL, Offer, Question
from fedran.federation.site.outbox import Outbox
from helpers.federation.flower_messages import blobs_of, fields_of

OFFER = Offer("trial", "may", 6, "cosine", "test", 20_000, group_size=5, min_group=5)
PHI = OFFER.features()
answer_offer, validate_heads, receive_results = (partial(answer, kind) for kind in Question)


class Place:
    """A site's folder."""

    def __init__(self, folder, client="site-1", more=""):
        self.folder = folder
        (folder / "data").mkdir(parents=True)
        self.key = SiteKey.generate()
        self.key.save(folder / "site.key")
        self.file = folder / "site.toml"
        self.file.write_text(f'federation = "trial"\nclient = "{client}"\nfolder = "data"\n{more}')
        for n, task in enumerate(("may", "june")):
            X, y = self.rows(n)
            np.savez(folder / "data" / f"{task}.npz", features=X, labels=y)

    @staticmethod
    def rows(seed):
        y = np.arange(60) % 3
        return np.random.default_rng(seed).random((60, 6)) + np.eye(6)[y], y

    @property
    def outbox(self):
        return Outbox(self.folder / "state" / "outbox")

    @property
    def head(self):
        return self.folder / "state" / "head.fedran"


def call(app, body, **run):
    """Fields and blobs of the answer."""
    now = time.time()
    about = Metadata(1, "m", 1, 2, "", "", now, 60.0, "train", src_task_id=1, dst_task_id=1)
    message = Message(content=body, metadata=about)
    reply = app(message, Context(1, 2, {}, RecordDict(), run))
    assert not reply.has_error()
    fields = fields_of(reply)
    names = {"client", "head", "settled", "waiting", "told", "failed", "more", "protocol"}
    assert set(fields) - {"validated", "counts", "histograms"} == names
    assert fields.pop("protocol") == PROTOCOL
    return fields, blobs_of(reply)


def asked(task="may", **changes):
    return make_record({"offer": {**OFFER.fields(), "task": task, **changes}}, {})
