"""Checks that every registered method must pass; what a method claims is tested."""

from dataclasses import fields

import numpy as np
import pytest

from fedran.bench.runner import run
from fedran.data.dataset import Dataset
from fedran.data.stream import Stream, Task, make_stream
from fedran.methods.protocol import ClientData, Spec
from fedran.methods.registry import METHODS

SMALL = {"out_features": 96, "rank": 24}


def make(key):
    factory = METHODS[key]
    names = {f.name for f in fields(factory)}
    return factory(**{k: v for k, v in SMALL.items() if k in names})


@pytest.fixture(scope="module")
def dataset():
    rng = np.random.default_rng(0)
    centres = 3 * rng.random((6, 10))
    y = np.repeat(np.arange(6), 30)
    X = np.abs(centres[y] + 0.3 * rng.standard_normal((180, 10))).astype(np.float32)
    train = np.arange(180) % 3 > 0
    return Dataset("toy", "features", X[train], y[train], X[~train], y[~train])


@pytest.fixture(scope="module")
def stream(dataset):
    return make_stream(dataset.y_train, n_tasks=3, n_clients=3, beta=0.5, seed=3)


def spec_of(dataset, stream):
    clients = tuple(f"client-{k}" for k in range(stream.n_clients))
    return Spec(dataset.X_train.shape[1], tuple(t.classes for t in stream.tasks), clients)


def uploads_of(method, dataset, stream, t, seed=0):
    return {
        f"client-{k}": method.client(
            None,
            b"",
            ClientData(f"client-{k}", str(t), dataset.X_train[rows], dataset.y_train[rows]),
            seed,
        )[1]
        for k, rows in enumerate(stream.tasks[t].rows)
    }


def final_state(method, dataset, stream, reverse=False):
    state = method.init(spec_of(dataset, stream), 0)
    for t in range(len(stream.tasks)):
        uploads = uploads_of(method, dataset, stream, t)
        ordered = dict(reversed(uploads.items())) if reverse else uploads
        state = method.aggregate(state, t, 0, ordered)
    return state


@pytest.mark.parametrize("key", METHODS)
def test_learns_what_it_sees_and_reports_what_it_carried(key, dataset, stream):
    method = make(key)
    result = run(method, dataset, stream)
    assert result.A_T > 80
    carried = [
        [len(b) for b in uploads_of(method, dataset, stream, t).values()]
        for t in range(len(stream.tasks))
    ]
    assert [t.bytes_up for t in result.tasks] == carried
    assert result.tasks[0].bytes_down == [0] * stream.n_clients
    assert result.bytes_down_final > 0
    assert method.sends
    assert len(result.acc) == 3


@pytest.mark.parametrize("key", METHODS)
def test_same_seed_same_result(key, dataset, stream):
    first, second = (run(make(key), dataset, stream) for _ in range(2))
    assert first.acc == second.acc
    assert first.run_id == second.run_id
    assert [t.bytes_up for t in first.tasks] == [t.bytes_up for t in second.tasks]
    if "out_features" in first.params:
        assert run(make(key), dataset, stream, seed=1).run_id != first.run_id


@pytest.mark.parametrize("key", METHODS)
def test_resume_equals_uninterrupted(key, dataset, stream):
    method = make(key)
    spec = spec_of(dataset, stream)
    state = method.load(method.dump(method.init(spec, 0)), spec, 0)
    cstate = None
    for t in range(len(stream.tasks)):
        state = method.aggregate(state, t, 0, uploads_of(method, dataset, stream, t))
        state = method.load(method.dump(state), spec, 0)
        cstate = method.load_client(method.dump_client(cstate))
    straight = final_state(method, dataset, stream)
    assert method.dump(state) == method.dump(straight)
    assert np.array_equal(
        method.predict(state, dataset.X_test), method.predict(straight, dataset.X_test)
    )


@pytest.mark.parametrize("key", [k for k in METHODS if make(k).claims.order_free])
def test_order_of_clients_does_not_matter(key, dataset, stream):
    method = make(key)
    forward = method.predict(final_state(method, dataset, stream), dataset.X_test)
    backward = method.predict(final_state(method, dataset, stream, reverse=True), dataset.X_test)
    assert np.array_equal(forward, backward)


@pytest.mark.parametrize("key", [k for k in METHODS if make(k).claims.partition_free])
def test_partition_does_not_matter(key, dataset, stream):
    method = make(key)
    pooled = Stream(
        tuple(Task(t.classes, (np.concatenate(t.rows), *t.rows[1:2])) for t in stream.tasks), {}
    )
    alone = Stream(tuple(Task(t.classes, (t.rows[0],)) for t in pooled.tasks), {})
    split = method.predict(final_state(method, dataset, stream), dataset.X_test)
    joint = method.predict(final_state(method, dataset, alone), dataset.X_test)
    assert np.array_equal(split, joint)


@pytest.mark.parametrize("key", [k for k in METHODS if make(k).claims.exact])
def test_exact_means_the_joint_ridge(key, dataset, stream):
    method = make(key)
    state = final_state(method, dataset, stream)
    H = state.phi(dataset.X_train).astype(np.float64)
    Y = np.eye(6)[dataset.y_train]
    lam = 0.05 * np.mean(np.sum(H**2, axis=1))
    W = np.linalg.solve(H.T @ H + lam * np.eye(H.shape[1]), H.T @ Y)
    assert np.allclose(state.head.weights, W, atol=1e-4 * np.abs(W).max())


@pytest.mark.parametrize("key", METHODS)
def test_empty_client_and_one_sample_class(key, dataset, stream):
    method = make(key)
    rows = np.flatnonzero(dataset.y_train == 0)
    lone = np.flatnonzero(dataset.y_train == 1)[:1]
    odd = Stream((Task((0, 1), (rows, np.zeros(0, dtype=np.int64), lone)),), {})
    state = final_state(method, dataset, odd)
    assert set(method.predict(state, dataset.X_test)) <= {0, 1}


@pytest.mark.parametrize("key", METHODS)
def test_nan_is_refused(key, dataset):
    X = dataset.X_train[:4].copy()
    X[2, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        make(key).client(None, b"", ClientData("c", "0", X, dataset.y_train[:4]), 0)


@pytest.mark.parametrize("key", METHODS)
def test_frozen_methods_have_no_drift(key, dataset, stream):
    method = make(key)
    state = final_state(method, dataset, stream)
    assert method.embed(state, dataset.X_test) is None


@pytest.mark.parametrize("key", METHODS)
def test_unlabelled_rows_are_left_out(key, dataset):
    method = make(key)
    X, y = dataset.X_train[:20], list(dataset.y_train[:20])
    hidden = [*y[:15], None, None, None, None, None]
    _, full = method.client(None, b"", ClientData("c", "0", X[:15], y[:15]), 0)
    _, part = method.client(None, b"", ClientData("c", "0", X, hidden), 0)
    assert full == part


@pytest.mark.parametrize("key", [k for k in METHODS if k != "ncm"])
def test_predicting_before_the_first_task_is_a_clear_error(key, dataset, stream):
    method = make(key)
    with pytest.raises(ValueError, match="no task"):
        method.predict(method.init(spec_of(dataset, stream), 0), dataset.X_test)


@pytest.mark.parametrize("key", ["exact", "ncm"])
def test_foreign_messages_are_refused(key, dataset, stream):
    method, other = make(key), make("fedran")
    state = method.init(spec_of(dataset, stream), 0)
    with pytest.raises(ValueError, match="kind: expected"):
        method.aggregate(state, 0, 0, uploads_of(other, dataset, stream, 0))
