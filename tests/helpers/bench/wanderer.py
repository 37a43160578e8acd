"""A small method that trains for three rounds per task, and data to run it on."""

import numpy as np

from fedran.data.dataset import Dataset
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.protocol import Claims
from fedran_bench.streams import make_stream

ROUNDS = 3
CLIENTS = 3


class Wanderer:
    """A linear extractor that every client changes at random, with nearest class means on top."""

    name, family, input = "Wanderer", "trained", "features"
    claims = Claims(one_round=False)
    sends, verified = "a push and class sums", "no: it serves a test"

    def __init__(self, step=0.3):
        self.step = step
        self.carried = []

    def params(self):
        return {"step": self.step}

    def formula(self, in_features, n_classes):
        return 10 * n_classes

    def rounds(self, task):
        return ROUNDS

    def init(self, spec, seed):
        return {"W": np.eye(spec.in_features), "means": {}}

    def broadcast(self, state, task, round_):
        return pack("wanderer", {"task": task, "round": round_}, {"W": state["W"]})

    def client(self, cstate, message, data, seed):
        """A push that depends on how often this client was called before."""
        count = 0 if cstate is None else cstate
        rng = np.random.default_rng([seed, count, int(data.client.split("-")[1])])
        d = unpack(message, FILE_LIMITS).tensors["W"].shape[0]
        y = np.array([-1 if c is None else c for c in data.y], dtype=int)
        classes = sorted(set(y[y >= 0].tolist()))
        sums = np.array([data.X[y == c].sum(axis=0) for c in classes], dtype=float).reshape(-1, d)
        fields = {"classes": classes, "counts": [int(np.sum(y == c)) for c in classes]}
        push = self.step * rng.standard_normal((d, d))
        upload = pack("wanderer", fields, {"push": push, "sums": sums})
        self.carried.append((data.client, data.task, len(upload), len(message)))
        return count + 1, upload

    def aggregate(self, state, task, round_, uploads):
        found = [unpack(u, FILE_LIMITS) for u in uploads.values()]
        W = state["W"] + np.mean([f.tensors["push"] for f in found], axis=0)
        means = dict(state["means"])
        if round_ == ROUNDS - 1:
            totals = {}
            for f in found:
                rows = zip(
                    f.header.fields["classes"],
                    f.header.fields["counts"],
                    f.tensors["sums"],
                    strict=True,
                )
                for c, n, row in rows:
                    before = totals.get(c, (0.0, 0))
                    totals[c] = (before[0] + row, before[1] + n)
            means.update({c: row / n @ W for c, (row, n) in totals.items()})
        return {"W": W, "means": means}

    def predict(self, state, X):
        classes = sorted(state["means"])
        means = np.array([state["means"][c] for c in classes])
        distances = np.linalg.norm((X @ state["W"])[:, None] - means[None], axis=2)
        return np.array(classes)[distances.argmin(axis=1)]

    def embed(self, state, X):
        return X @ state["W"]


def toy_dataset():
    """Six classes in five dimensions, with groups and a known forward pass."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.random((6, 5))
    y = np.repeat(np.arange(6), 24)
    X = np.abs(centres[y] + 0.3 * rng.standard_normal((len(y), 5))).astype(np.float32)
    test = rng.random(len(y)) < 0.4
    groups = np.arange(len(y)) % 4
    return Dataset(
        "toy", "features", X[~test], y[~test], X[test], y[test], groups[~test], seconds_per_row=0.5
    )


def toy_stream(dataset):
    """Three tasks, three clients, 60 % of the rows labelled."""
    return make_stream(
        dataset.y_train, n_tasks=3, n_clients=CLIENTS, beta=1.0, seed=3, label_rate=0.6
    )


def labels_of(dataset, task, k):
    y = dataset.y_train[task.rows[k]].tolist()
    return [c if has else None for c, has in zip(y, task.has_label(k), strict=True)]
