"""Checks that every registered method must pass; what a method claims is tested."""

from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedran.data.dataset import Dataset, as_images
from fedran_bench.methods.analytic.class_means import ClassSumsMethod
from fedran_bench.methods.prompted.base import PromptedMethod
from fedran_bench.methods.protocol import ClientData, EncodedImages, Spec, cached_backbone
from fedran_bench.methods.registry import METHODS, make_method, settings
from fedran_bench.methods.trained.fedavg import FedAvg
from fedran_bench.run.runner import PreparedJob, run
from fedran_bench.streams import Stream, Task, make_stream
from helpers.bench.tiny_vit import tiny_vit

SMALL = {
    "out_features": 96,
    "rank": 24,
    "dummies": 4,
    "lam": 100.0,
    "n_rounds": 2,
    "epochs": 2,
    "batch": 16,
    "lr": 0.1,
    "augment": False,
    "memory_size": 9,
    "synthesis_rounds": 2,
    "warmup": 1,
    "generator_steps": 2,
    "distillation_steps": 2,
    "synthetic_batch": 12,
    "rows_per_class": 60,
    "min_group": 1,
    "layers": 2,
    "members": 2,
    "gamma": 0.5,
    "general_blocks": 1,
    "task_blocks": 1,
    "blocks": 2,
    "components": 3,
    "width": 24,
    "most_rows": 256,
    "epsilon": 1e4,
}
TRAINED = [key for key in METHODS if issubclass(METHODS[key], FedAvg)]
PROMPTED = [key for key in TRAINED if issubclass(METHODS[key], PromptedMethod)]
RATES = {"pilora": {"head_lr": 0.1, "epochs": 4}, "lorm": {"lr": 0.01, "epochs": 4}}
OWN_RIDGE = ("exact", "fed3r", *(key for key in METHODS if key.startswith("fedran")))
OFFERED = ("fedran-secure", "fedran-dp")
"""Methods whose clients must know the class list of a task before they compute."""
LABELLERS = ("fedran-ssl", "fedran-prototype", "fedran-margin")


def make(key):
    """A method by its key; ``key@small`` trains the small network on images."""
    key, _, network = key.partition("@")
    names = {name for name in settings(key) if not (name == "lam" and key in OWN_RIDGE)}
    more = {"network": "small"} if network or key == "target" else {}
    if key in PROMPTED:
        more = {"weights": tiny_vit(), "n_rounds": 2, "epochs": 2, "batch": 8}
        more |= RATES.get(key, {})
    return make_method(key, {k: v for k, v in SMALL.items() if k in names} | more)


KEYS = [*METHODS, *(f"{key}@small" for key in TRAINED if key not in ("target", *PROMPTED))]
if find_spec("torch") is None:
    KEYS = [key for key in METHODS if key not in TRAINED]
ANALYTIC = [k for k in METHODS if k not in TRAINED]


def each(keys):
    """One test per method. The tests of a method follow each other, because they share its runs."""
    return pytest.mark.parametrize("key", keys, scope="module")


class Learned(NamedTuple):
    """The server's state after all tasks, and the bytes that each client sent per task."""

    state: Any
    bytes_up: list[list[int]]


class Pictures:
    """Images whose bytes are the features; their pixels are blocks of the features' brightness."""

    def __init__(self, X):
        self.X = X

    def __len__(self):
        return len(self.X)

    def encoded(self, i):
        return self.X[i].tobytes()

    def pixels(self, i):
        levels = np.clip(60 * self.X[i][:4], 0, 255).astype(np.uint8).reshape(2, 2)
        return np.repeat(np.repeat(np.repeat(levels, 4, 0), 4, 1)[:, :, None], 3, 2)


@pytest.fixture(scope="module")
def dataset():
    rng = np.random.default_rng(0)
    centres = 3 * rng.random((6, 10))
    y = np.repeat(np.arange(6), 30)
    X = np.abs(centres[y] + 0.3 * rng.standard_normal((180, 10))).astype(np.float32)
    train = np.arange(180) % 3 > 0
    return Dataset(
        "toy",
        "features",
        X[train],
        y[train],
        X[~train],
        y[~train],
        images=Pictures(X[train]),
        test_images=Pictures(X[~train]),
    )


@pytest.fixture(scope="module")
def stream(dataset):
    return make_stream(dataset.y_train, n_tasks=3, n_clients=3, beta=0.5, seed=3)


@pytest.fixture(scope="module")
def result_of(dataset, stream):
    """The result of a whole run of a method; every method runs once."""
    return cache(lambda key: run(PreparedJob(key, make(key), dataset, stream)))


@pytest.fixture(scope="module")
def learned(dataset, stream):
    """What a method learned from all tasks; every method learns once."""
    return cache(lambda key: learn(make(key), dataset, stream))


def rows_of(method, dataset):
    """The dataset as the method takes it."""
    return as_images(dataset) if method.input == "images" else dataset


def spec_of(method, dataset, stream):
    clients = tuple(f"client-{k}" for k in range(stream.n_clients))
    backbone = cached_backbone(dataset.images, dataset.X_train)
    classes = tuple(t.classes for t in stream.tasks)
    size = 8 if method.input == "images" else None
    return Spec(dataset.X_train.shape[1], classes, clients, backbone, size)


def data_of(method, dataset, rows, client="c", task="0"):
    X, y = rows_of(method, dataset).X_train[rows], dataset.y_train[rows]
    return ClientData(client, task, X, y, EncodedImages(dataset.images, rows))


def one_round(method, state, cstates, dataset, stream, t, round_, seed=0):
    """The uploads of all clients; their states are put in place."""
    message = method.broadcast(state, t, round_)
    uploads = {}
    for k, rows in enumerate(stream.tasks[t].rows):
        name = f"client-{k}"
        data = data_of(method, dataset, rows, name, str(t))
        cstates[name], uploads[name] = method.client(cstates.get(name), message, data, seed)
    return uploads


def first_uploads(method, dataset, stream):
    state = method.init(spec_of(method, dataset, stream), 0)
    return one_round(method, state, {}, dataset, stream, 0, 0)


def learn(method, dataset, stream, reverse=False):
    state, cstates, bytes_up = method.init(spec_of(method, dataset, stream), 0), {}, []
    for t in range(len(stream.tasks)):
        sent = np.zeros(stream.n_clients, int)
        for r in range(method.rounds(t)):
            uploads = one_round(method, state, cstates, dataset, stream, t, r)
            sent += [len(b) for b in uploads.values()]
            ordered = dict(reversed(uploads.items())) if reverse else uploads
            state = method.aggregate(state, t, r, ordered)
        bytes_up.append(sent.tolist())
    return Learned(state, bytes_up)


def predictions(method, state, dataset):
    return method.predict(state, rows_of(method, dataset).X_test)


@each(KEYS)
def test_learns_what_it_sees_and_reports_what_it_carried(key, result_of, learned):
    method, result = make(key), result_of(key)
    assert (100 * result.acc[0][0] if method.family == "trained" else result.A_T) > 80
    assert [t.bytes_up for t in result.tasks] == learned(key).bytes_up
    assert [t.rounds for t in result.tasks] == [method.rounds(t) for t in range(3)]
    assert result.tasks[1].bytes_down[0] > 0
    assert result.bytes_down_final > 0
    assert method.sends
    assert len(result.acc) == 3


@each([k for k in ANALYTIC if make(k).claims.one_round])
def test_nothing_but_an_offer_is_downloaded_before_the_first_task(key, result_of):
    most = 1000 if key in OFFERED else 0
    assert max(result_of(key).tasks[0].bytes_down) <= most


@each([k for k in KEYS if make(k).claims.order_free])
def test_order_of_clients_does_not_matter(key, dataset, stream, learned):
    method = make(key)
    forward = predictions(method, learned(key).state, dataset)
    backward = predictions(method, learn(method, dataset, stream, reverse=True).state, dataset)
    assert np.array_equal(forward, backward)


@each([k for k in KEYS if make(k).claims.partition_free])
def test_partition_does_not_matter(key, dataset, stream, learned):
    method = make(key)
    pooled = Stream(
        tuple(Task(t.classes, (np.concatenate(t.rows), *t.rows[1:2])) for t in stream.tasks), {}
    )
    alone = Stream(tuple(Task(t.classes, (t.rows[0],)) for t in pooled.tasks), {})
    split = predictions(method, learned(key).state, dataset)
    joint = method.predict(learn(method, dataset, alone).state, dataset.X_test)
    assert np.array_equal(split, joint)


@each([k for k in KEYS if make(k).claims.exact])
def test_exact_means_one_client_with_everything_in_one_task(key, dataset, stream, learned):
    method = make(key)
    rows = np.concatenate([r for t in stream.tasks for r in t.rows])
    joint = Stream((Task(stream.seen(2), (rows,)),), {})
    split, alone = learned(key).state, learn(method, dataset, joint).state
    assert np.array_equal(predictions(method, split, dataset), predictions(method, alone, dataset))
    if hasattr(split, "head"):
        W, V = split.head.weights, alone.head.weights
        assert np.allclose(W, V, atol=1e-3 * np.abs(V).max())


@each(KEYS)
def test_empty_client_and_one_sample_class(key, dataset, stream):
    method = make(key)
    rows = np.flatnonzero(dataset.y_train == 0)
    lone = np.flatnonzero(dataset.y_train == 1)[:1]
    odd = Stream((Task((0, 1), (rows, np.zeros(0, dtype=np.int64), lone)),), {})
    state = learn(method, dataset, odd).state
    assert set(predictions(method, state, dataset)) <= {0, 1}


@each([k for k in KEYS if make(k).input == "features" and k != "send-images"])
def test_nan_is_refused(key, dataset, stream):
    rows = np.flatnonzero(np.isin(dataset.y_train, stream.tasks[0].classes))[:4]
    X = dataset.X_train[rows].copy()
    X[2, 1] = np.nan
    method = make(key)
    message = method.broadcast(method.init(spec_of(method, dataset, stream), 0), 0, 0)
    with pytest.raises(ValueError, match="NaN"):
        method.client(None, message, ClientData("c", "0", X, dataset.y_train[rows]), 0)


@each(KEYS)
def test_frozen_methods_have_no_drift(key, dataset, learned):
    method = make(key)
    found = method.embed(learned(key).state, rows_of(method, dataset).X_test)
    assert (found is None) == (method.input == "features")


@each([k for k in KEYS if k not in LABELLERS])
def test_unlabelled_rows_are_left_out(key, dataset, stream):
    method = make(key)
    message = method.broadcast(method.init(spec_of(method, dataset, stream), 0), 0, 0)
    rows = np.flatnonzero(np.isin(dataset.y_train, stream.tasks[0].classes))[:20]
    data = data_of(method, dataset, rows)
    hidden = [*data.y[:15], None, None, None, None, None]
    labelled = data_of(method, dataset, rows[:15])
    _, full = method.client(None, message, labelled, 0)
    _, part = method.client(None, message, replace(data, y=hidden), 0)
    assert full == part


@each(KEYS)
def test_predicting_before_the_first_task_is_a_clear_error(key, dataset, stream):
    method = make(key)
    with pytest.raises(ValueError, match="no task"):
        predictions(method, method.init(spec_of(method, dataset, stream), 0), dataset)


@each(KEYS)
def test_foreign_messages_are_refused(key, dataset, stream):
    method = make(key)
    other = make("fedncm" if not isinstance(method, ClassSumsMethod) else "exact")
    state = method.init(spec_of(method, dataset, stream), 0)
    with pytest.raises(ValueError, match="kind: expected"):
        method.aggregate(state, 0, 0, first_uploads(other, dataset, stream))
