"""Checks that every registered method must pass; what a method claims is tested."""

import numpy as np
import pytest

from fedran.bench.checkpoint import Checkpoint
from fedran.bench.images import Encoded, cached_backbone
from fedran.bench.runner import Run, run
from fedran.data.dataset import Dataset
from fedran.data.stream import Stream, Task, make_stream
from fedran.methods.class_sums import ClassSumsClient
from fedran.methods.protocol import ClientData, Spec
from fedran.methods.registry import METHODS, make_method, settings

SMALL = {"out_features": 96, "rank": 24, "dummies": 4, "lam": 100.0}
OWN_RIDGE = ("fedran", "fedran-prototype", "fedran-margin", "exact", "fed3r", "fedran-paper")
LABELLERS = ("fedran-prototype", "fedran-margin")


def make(key):
    names = {name for name in settings(key) if not (name == "lam" and key in OWN_RIDGE)}
    return make_method(key, {k: v for k, v in SMALL.items() if k in names})


class Pictures:
    """Images whose bytes are the features: enough to check what travels."""

    def __init__(self, X):
        self.X = X

    def __len__(self):
        return len(self.X)

    def encoded(self, i):
        return self.X[i].tobytes()

    def pixels(self, i):
        raise AssertionError("nothing here decodes")


@pytest.fixture(scope="module")
def dataset():
    rng = np.random.default_rng(0)
    centres = 3 * rng.random((6, 10))
    y = np.repeat(np.arange(6), 30)
    X = np.abs(centres[y] + 0.3 * rng.standard_normal((180, 10))).astype(np.float32)
    train = np.arange(180) % 3 > 0
    images = Pictures(X[train])
    return Dataset("toy", "features", X[train], y[train], X[~train], y[~train], images=images)


@pytest.fixture(scope="module")
def stream(dataset):
    return make_stream(dataset.y_train, n_tasks=3, n_clients=3, beta=0.5, seed=3)


def spec_of(dataset, stream):
    clients = tuple(f"client-{k}" for k in range(stream.n_clients))
    backbone = cached_backbone(dataset.images, dataset.X_train)
    classes = tuple(t.classes for t in stream.tasks)
    return Spec(dataset.X_train.shape[1], classes, clients, backbone)


def data_of(dataset, rows, client="c", task="0"):
    X, y = dataset.X_train[rows], dataset.y_train[rows]
    return ClientData(client, task, X, y, Encoded(dataset.images, rows))


def uploads_of(method, dataset, stream, t, seed=0):
    return {
        f"client-{k}": method.client(
            None,
            b"",
            data_of(dataset, rows, f"client-{k}", str(t)),
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
    result = run(Run(key, method, dataset, stream))
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
    first, second = (run(Run(key, make(key), dataset, stream)) for _ in range(2))
    assert first.acc == second.acc
    assert first.run_id == second.run_id
    assert [t.bytes_up for t in first.tasks] == [t.bytes_up for t in second.tasks]
    if "out_features" in first.params:
        assert run(Run(key, make(key), dataset, stream, seed=1)).run_id != first.run_id


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
def test_exact_means_one_client_with_everything_in_one_task(key, dataset, stream):
    method = make(key)
    rows = np.concatenate([r for t in stream.tasks for r in t.rows])
    joint = Stream((Task(stream.seen(2), (rows,)),), {})
    split = final_state(method, dataset, stream)
    alone = final_state(method, dataset, joint)
    assert np.array_equal(
        method.predict(split, dataset.X_test), method.predict(alone, dataset.X_test)
    )
    if hasattr(split, "head"):
        W, V = split.head.weights, alone.head.weights
        assert np.allclose(W, V, atol=1e-3 * np.abs(V).max())


@pytest.mark.parametrize("key", METHODS)
def test_empty_client_and_one_sample_class(key, dataset, stream):
    method = make(key)
    rows = np.flatnonzero(dataset.y_train == 0)
    lone = np.flatnonzero(dataset.y_train == 1)[:1]
    odd = Stream((Task((0, 1), (rows, np.zeros(0, dtype=np.int64), lone)),), {})
    state = final_state(method, dataset, odd)
    assert set(method.predict(state, dataset.X_test)) <= {0, 1}


@pytest.mark.parametrize("key", [k for k in METHODS if k != "send-images"])
def test_nan_is_refused(key, dataset):
    X = dataset.X_train[:4].copy()
    X[2, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        make(key).client(None, b"", ClientData("c", "0", X, dataset.y_train[:4]), 0)


@pytest.mark.parametrize("key", METHODS)
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(key, dataset, stream, tmp_path):
    job = Run(key, make(key), dataset, stream)
    straight = run(job)

    def stop(what):
        if what.startswith("task 2: solved"):
            raise KeyboardInterrupt

    checkpoint = Checkpoint(tmp_path / "run.ckpt", seconds=0)
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stop, checkpoint=checkpoint)
    said = []
    resumed = run(job, progress=said.append, checkpoint=checkpoint)
    assert len(said) == job.steps
    assert "task 2: done before" in said
    assert resumed.acc == straight.acc
    assert resumed.class_right == straight.class_right
    assert [t.bytes_up for t in resumed.tasks] == [t.bytes_up for t in straight.tasks]


@pytest.mark.parametrize("key", METHODS)
def test_frozen_methods_have_no_drift(key, dataset, stream):
    method = make(key)
    state = final_state(method, dataset, stream)
    assert method.embed(state, dataset.X_test) is None


@pytest.mark.parametrize("key", [k for k in METHODS if k not in LABELLERS])
def test_unlabelled_rows_are_left_out(key, dataset):
    method = make(key)
    X, y = dataset.X_train[:20], list(dataset.y_train[:20])
    images = [dataset.images.encoded(i) for i in range(20)]
    hidden = [*y[:15], None, None, None, None, None]
    _, full = method.client(None, b"", ClientData("c", "0", X[:15], y[:15], images[:15]), 0)
    _, part = method.client(None, b"", ClientData("c", "0", X, hidden, images), 0)
    assert full == part


@pytest.mark.parametrize("key", METHODS)
def test_predicting_before_the_first_task_is_a_clear_error(key, dataset, stream):
    method = make(key)
    with pytest.raises(ValueError, match="no task"):
        method.predict(method.init(spec_of(dataset, stream), 0), dataset.X_test)


@pytest.mark.parametrize("key", METHODS)
def test_foreign_messages_are_refused(key, dataset, stream):
    method = make(key)
    other = make("fedncm" if not isinstance(method, ClassSumsClient) else "exact")
    state = method.init(spec_of(dataset, stream), 0)
    with pytest.raises(ValueError, match="kind: expected"):
        method.aggregate(state, 0, 0, uploads_of(other, dataset, stream, 0))
