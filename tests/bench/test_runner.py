"""The runner, with a small method that trains for three rounds a task."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import fedran
from fedran.bench.results import metrics
from fedran.bench.results.result import Result, Seconds, code_hash
from fedran.bench.run.checkpoint import Checkpoint
from fedran.bench.run.runner import Run, run
from fedran.core.pseudo_labels import prototype_labels
from fedran.data.dataset import Dataset
from fedran.data.stream import Stream, Task, make_stream
from fedran.methods.protocol import Claims, ClientData, Spec
from fedran.methods.registry import make_method
from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS

ROUNDS = 3
CLIENTS = 3


class Wanderer:
    """A linear extractor that every client pushes about at random; nearest class mean on top."""

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

    def participants(self, task, round_, clients, seed):
        return clients

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

    def gram(self, state):
        return None

    def embed(self, state, X):
        return X @ state["W"]

    def dump(self, state):
        classes = sorted(state["means"])
        means = np.array([state["means"][c] for c in classes]).reshape(-1, len(state["W"]))
        return pack("wanderer", {"classes": classes}, {"W": state["W"], "means": means})

    def load(self, blob, spec, seed):
        found = unpack(blob, FILE_LIMITS)
        classes = found.header.fields["classes"]
        means = dict(zip(classes, found.tensors["means"], strict=True))
        return {"W": found.tensors["W"], "means": means}

    def dump_client(self, cstate):
        return b"" if cstate is None else str(cstate).encode()

    def load_client(self, blob):
        return int(blob) if blob else None


@pytest.fixture(scope="module")
def dataset():
    rng = np.random.default_rng(0)
    centres = 3 * rng.random((6, 5))
    y = np.repeat(np.arange(6), 24)
    X = np.abs(centres[y] + 0.3 * rng.standard_normal((len(y), 5))).astype(np.float32)
    test = rng.random(len(y)) < 0.4
    groups = np.arange(len(y)) % 4
    return Dataset(
        "toy", "features", X[~test], y[~test], X[test], y[test], groups[~test], seconds_per_row=0.5
    )


@pytest.fixture(scope="module")
def stream(dataset):
    return make_stream(
        dataset.y_train, n_tasks=3, n_clients=CLIENTS, beta=1.0, seed=3, label_rate=0.6
    )


@pytest.fixture(scope="module")
def result(dataset, stream):
    return run(Run("wanderer", Wanderer(), dataset, stream, seed=2))


def timeless(result):
    """Everything but what the clock and the machine decide."""
    tasks = [replace(t, seconds=Seconds([], 0.0), peak_rss=None) for t in result.tasks]
    return replace(result, tasks=tasks, date="")


def labels_of(dataset, task, k):
    y = dataset.y_train[task.rows[k]].tolist()
    return [c if has else None for c, has in zip(y, task.has_label(k), strict=True)]


def by_hand(method, dataset, stream, seed):
    """The protocol in plain loops: the server's state after each task."""
    clients = [f"client-{k}" for k in range(stream.n_clients)]
    classes = tuple(t.classes for t in stream.tasks)
    state = method.init(Spec(dataset.X_train.shape[1], classes, tuple(clients)), seed)
    memory, after = dict.fromkeys(clients), []
    for t, task in enumerate(stream.tasks):
        for round_ in range(method.rounds(t)):
            message, uploads = method.broadcast(state, t, round_), {}
            for k, name in enumerate(clients):
                X = dataset.X_train[task.rows[k]]
                data = ClientData(name, str(t), X, labels_of(dataset, task, k))
                memory[name], uploads[name] = method.client(memory[name], message, data, seed)
            state = method.aggregate(state, t, round_, uploads)
        after.append(state)
    return after


def test_accuracy_is_that_of_plain_loops(dataset, stream, result):
    method = Wanderer()
    for t, state in enumerate(by_hand(method, dataset, stream, 2)):
        for j in range(t + 1):
            rows = np.isin(dataset.y_test, stream.tasks[j].classes)
            right = method.predict(state, dataset.X_test[rows]) == dataset.y_test[rows]
            assert result.acc[t][j] == pytest.approx(right.mean())
    assert [len(row) for row in result.acc] == [1, 2, 3]


def test_drift_is_the_mean_distance_of_client_1s_rows_of_task_2_from_where_they_were(
    dataset, stream, result
):
    method, rows = Wanderer(), stream.tasks[1].rows[0]
    X = dataset.X_train[rows]
    first, second = (method.embed(s, X) for s in by_hand(method, dataset, stream, 2)[1:])
    moved = np.mean([np.linalg.norm(b - a) for a, b in zip(first, second, strict=True)])
    assert result.drift == [0.0, pytest.approx(moved)]
    assert moved > 0.1


def test_drift_of_a_single_task_is_zero(dataset):
    one = make_stream(dataset.y_train, n_tasks=1, n_clients=2, beta=1.0, seed=0)
    assert run(Run("wanderer", Wanderer(), dataset, one)).drift == [0.0]


def test_frozen_methods_report_no_drift(dataset, stream):
    assert run(Run("fedncm", make_method("fedncm"), dataset, stream)).drift == []


def test_bytes_are_summed_over_rounds(dataset, stream):
    method = Wanderer()
    found = run(Run("wanderer", method, dataset, stream, seed=2))
    for t, record in enumerate(found.tasks):
        for k in range(CLIENTS):
            calls = [c for c in method.carried if c[:2] == (f"client-{k}", str(t))]
            assert len(calls) == ROUNDS == record.rounds
            assert record.bytes_up[k] == sum(c[2] for c in calls)
            assert record.bytes_down[k] == sum(c[3] for c in calls)
        assert record.formula_bytes == 10 * 2 * (t + 1)
    last = by_hand(method, dataset, stream, 2)[-1]
    assert found.bytes_down_final == len(method.broadcast(last, 3, 0))


def test_a_run_says_what_is_needed_to_repeat_it(dataset, stream):
    job = Run(
        *("wanderer", Wanderer(), dataset, stream, 2, "label"),
        study="runtime",
        config="c.toml",
        budgets={"drift": 1.0},
    )
    found = run(job)
    assert found.run_id == job.run_id
    assert (found.key, found.label, found.config) == ("wanderer", "label", "c.toml")
    assert found.study == "runtime"
    assert (found.family, found.params) == ("trained", {"step": 0.3})
    assert found.seeds == {"order": 3, "partition": 3, "mask": 3, "projection": 2}
    assert found.hashes == {"stream": stream.hash, "features": dataset.hash}
    assert found.stream == stream.settings
    assert found.versions["fedran"] == f"{fedran.__version__}+{code_hash()}"
    assert found.side_by_side == 1
    assert Result.from_json(found.to_json()) == found


def test_the_run_id_knows_method_settings_seeds_and_data(dataset, stream):
    base = Run("wanderer", Wanderer(), dataset, stream)
    others = [
        replace(base, key="other"),
        replace(base, method=Wanderer(0.4)),
        replace(base, seed=1),
        replace(base, dataset=replace(dataset, source={"weights": "abc"})),
        replace(base, dataset=replace(dataset, X_train=dataset.X_train + 1)),
        replace(base, stream=make_stream(dataset.y_train, n_tasks=3, n_clients=3, beta=1, seed=3)),
    ]
    assert len({base.run_id, *(o.run_id for o in others)}) == len(others) + 1
    assert replace(base, label="x", config="y", study="rank").run_id == base.run_id


def test_class_counts_agree_with_accuracies(dataset, stream, result):
    assert result.classes == [c for t in stream.tasks for c in t.classes]
    assert result.class_rows == [int(np.sum(dataset.y_test == c)) for c in result.classes]
    assert sum(result.test_rows) == len(dataset.y_test)
    for t, right in enumerate(result.class_right):
        assert len(right) == 2 * (t + 1)
        for j in range(t + 1):
            share = sum(right[2 * j : 2 * j + 2]) / result.test_rows[j]
            assert result.acc[t][j] == pytest.approx(share)


def test_label_rates_are_those_of_the_masks(stream, result):
    for task, record in zip(stream.tasks, result.tasks, strict=True):
        shares = [pytest.approx(m.mean()) if len(m) else None for m in task.labelled]
        assert record.label_rate == shares
        assert record.accepted is None
        assert record.precision is None


def test_pseudo_labels_are_counted_against_the_truth(dataset, stream):
    found = run(Run("p", make_method("fedran-prototype", {"out_features": 32}), dataset, stream))
    for task, record in zip(stream.tasks, found.tasks, strict=True):
        accepted, precision = [], []
        for k, rows in enumerate(task.rows):
            if task.has_label(k).all():
                continue
            labels = labels_of(dataset, task, k)
            given = prototype_labels(dataset.X_train[rows], labels, 0.5)
            accepted.append(given.acceptance)
            taken = np.flatnonzero(given.accepted)
            right = [given.labels[i] == dataset.y_train[rows[i]] for i in taken]
            precision += [np.mean(right)] if right else []
        assert [v for v in record.accepted if v is not None] == pytest.approx(accepted)
        assert [v for v in record.precision if v is not None] == pytest.approx(precision)
        assert 0 < np.mean(precision) <= 1


def test_the_gram_error_is_zero_for_exact_and_falls_with_the_rank(dataset, stream):
    def errors(key, **params):
        method = make_method(key, {"out_features": 48, **params})
        return [t.gram_error for t in run(Run(key, method, dataset, stream, gram_error=True)).tasks]

    assert errors("exact") == pytest.approx([0.0] * 3, abs=1e-6)
    by_rank = [errors("fedran", rank=r, precision="float64") for r in (1, 2, 4, 8, 48)]
    for lower, higher in pairwise(by_rank):
        assert all(a > b for a, b in zip(lower, higher, strict=True))
    assert by_rank[0][0] > 0.005
    assert by_rank[-1] == pytest.approx([0.0] * 3, abs=1e-5)


def test_the_gram_error_is_that_of_the_definition(dataset, stream):
    method = make_method("fedran", {"out_features": 48, "rank": 2, "precision": "float64"})
    found = run(Run("fedran", method, dataset, stream, seed=5, gram_error=True))
    phi = fedran.RandomFeatures(5, 48, seed=5)
    exact, low = np.zeros((48, 48)), np.zeros((48, 48))
    for task, record in zip(stream.tasks, found.tasks, strict=True):
        for k, rows in enumerate(task.rows):
            H = phi(dataset.X_train[rows][task.has_label(k)]).astype(np.float64)
            exact += H.T @ H
            _, s, V = np.linalg.svd(H, full_matrices=False)
            low += (V[:2].T * s[:2] ** 2) @ V[:2]
        expected = np.linalg.norm(low - exact) / np.linalg.norm(exact)
        assert record.gram_error == pytest.approx(expected, rel=1e-3)


def test_the_gram_error_is_absent_unless_asked_for_and_where_there_is_no_gram(dataset, stream):
    exact = make_method("exact", {"out_features": 16})
    assert run(Run("exact", exact, dataset, stream)).tasks[0].gram_error is None
    found = run(Run("wanderer", Wanderer(), dataset, stream, gram_error=True))
    assert found.tasks[0].gram_error is None


def test_extraction_seconds_are_rows_times_seconds_per_row(dataset, stream, result):
    for task, record in zip(stream.tasks, result.tasks, strict=True):
        assert record.seconds.extraction == [0.5 * len(r) for r in task.rows]
    untimed = replace(dataset, seconds_per_row=None)
    found = run(Run("fedncm", make_method("fedncm"), untimed, stream))
    assert found.tasks[0].seconds.extraction is None
    told = run(Run("fedncm", make_method("fedncm"), untimed, stream, seconds_per_row=2.0))
    assert told.tasks[0].seconds.extraction == [2.0 * len(r) for r in stream.tasks[0].rows]
    measured = run(Run("fedncm", make_method("fedncm"), dataset, stream, seconds_per_row=2.0))
    assert measured.tasks[0].seconds.extraction == [0.5 * len(r) for r in stream.tasks[0].rows]


def test_seconds_and_memory_are_measured(result):
    for record in result.tasks:
        assert len(record.seconds.client) == CLIENTS
        assert all(0 < s < 10 for s in record.seconds.client)
        assert 0 < record.seconds.server < 10
        assert record.peak_rss > 10 * 2**20


def test_the_ridge_of_each_task_is_recorded(dataset, stream, result):
    method = make_method("fedran", {"out_features": 32, "rank": 2})
    records = run(Run("fedran", method, dataset, stream)).tasks
    assert all(t.lam > 0 and 0 < t.f < 1 for t in records)
    assert all(t.lam is None and t.f is None for t in result.tasks)


def test_budgets_are_kept_and_checked(dataset, stream):
    def met(**budgets):
        job = Run("wanderer", Wanderer(), dataset, stream, budgets=budgets)
        return metrics.budgets_met(run(job))

    assert met(bytes=1.0, seconds=1000.0, drift=0.0) == {
        "bytes": False,
        "seconds": True,
        "drift": False,
    }
    assert met(bytes=1e9, drift=1e9) == {"bytes": True, "drift": True}
    assert met() == {}


def stopping(after):
    """Progress that is interrupted after so many steps."""
    steps = iter(range(after))

    def progress(what):
        if next(steps, None) is None:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("after", range(0, 30))
def test_a_run_interrupted_anywhere_goes_on_bit_for_bit(after, dataset, stream, result, tmp_path):
    """Thirty steps: three tasks of three rounds of three clients, and a test each."""
    job = Run("wanderer", Wanderer(), dataset, stream, seed=2)
    assert job.steps == 30
    checkpoint = Checkpoint(tmp_path / "c", seconds=0)
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stopping(after), checkpoint=checkpoint)
    assert checkpoint.path.exists() == (after >= ROUNDS)
    resumed = run(job, checkpoint=Checkpoint(checkpoint.path))
    assert timeless(resumed) == timeless(result)


def test_a_resumed_run_repeats_at_most_the_round_it_was_in(dataset, stream, tmp_path):
    """Interrupted in round 2 of task 2, at its second client."""
    method = Wanderer()
    job = Run("wanderer", method, dataset, stream, seed=2)
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stopping(10 + 3 + 1), checkpoint=Checkpoint(tmp_path / "c", 0))
    assert len(method.carried) == 9 + 3 + 2
    method.carried.clear()
    run(job, checkpoint=Checkpoint(tmp_path / "c", 0))
    assert len(method.carried) == 2 * 3 + 9


def test_a_run_interrupted_twice_goes_on_too(dataset, stream, result, tmp_path):
    job = Run("wanderer", Wanderer(), dataset, stream, seed=2)
    for after in (5, 16):
        with pytest.raises(KeyboardInterrupt):
            run(job, progress=stopping(after), checkpoint=Checkpoint(tmp_path / "c", 0))
    resumed = run(job, checkpoint=Checkpoint(tmp_path / "c", 0))
    assert timeless(resumed) == timeless(result)


def test_a_resumed_run_reports_as_many_steps_as_it_announced(dataset, stream, tmp_path):
    job = Run("wanderer", Wanderer(), dataset, stream, seed=2)
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stopping(14), checkpoint=Checkpoint(tmp_path / "c", 0))
    said = []
    run(job, progress=said.append, checkpoint=Checkpoint(tmp_path / "c", 0))
    assert len(said) == job.steps


def test_a_short_run_leaves_nothing_on_disk(dataset, stream, tmp_path):
    job = Run("wanderer", Wanderer(), dataset, stream)
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stopping(20), checkpoint=Checkpoint(tmp_path / "c"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut off", "a flipped bit", "empty", "something else"])
def test_a_damaged_checkpoint_starts_anew(damage, dataset, stream, result, tmp_path):
    job = Run("wanderer", Wanderer(), dataset, stream, seed=2)
    path = tmp_path / "c"
    with pytest.raises(KeyboardInterrupt):
        run(job, progress=stopping(14), checkpoint=Checkpoint(path, 0))
    blob = bytearray(path.read_bytes())
    blob[-9] ^= 1
    damaged = {
        "cut off": path.read_bytes()[:-5],
        "a flipped bit": blob,
        "empty": b"",
        "something else": b"hello" * 100,
    }
    path.write_bytes(damaged[damage])
    said = []
    again = run(job, progress=said.append, checkpoint=Checkpoint(path, 0))
    assert timeless(again) == timeless(result)
    assert not any("done before" in s for s in said)


@pytest.mark.parametrize("other", ["kind", "method"])
def test_a_checkpoint_that_is_something_else_starts_anew(other, dataset, stream, result, tmp_path):
    path = tmp_path / "c"
    if other == "kind":
        path.write_bytes(pack("upload", {}, {"x": np.zeros(3)}))
    else:
        fed = Run("fedncm", make_method("fedncm"), dataset, stream)
        with pytest.raises(KeyboardInterrupt):
            run(fed, progress=stopping(4), checkpoint=Checkpoint(path, 0))
    job = Run("wanderer", Wanderer(), dataset, stream, seed=2)
    assert timeless(run(job, checkpoint=Checkpoint(path, 0))) == timeless(result)


def test_clients_without_rows_take_part(dataset):
    rows = np.flatnonzero(np.isin(dataset.y_train, [0, 1]))
    empty = np.zeros(0, dtype=np.int64)
    found = run(Run("wanderer", Wanderer(), dataset, Stream((Task((0, 1), (rows, empty)),), {})))
    assert found.tasks[0].label_rate == [1.0, None]
    assert found.tasks[0].seconds.extraction == [0.5 * len(rows), 0.0]
    assert all(b > 0 for b in found.tasks[0].bytes_up)


def test_string_labels_run_like_numbers(dataset, stream):
    names = np.array(["ant", "bee", "cat", "dog", "eel", "fly"])
    named = replace(dataset, y_train=names[dataset.y_train], y_test=names[dataset.y_test])
    again = make_stream(
        named.y_train, n_tasks=3, n_clients=CLIENTS, beta=1.0, seed=3, label_rate=0.6
    )
    method = make_method("fedran", {"out_features": 32, "rank": 8})
    by_name = run(Run("fedran", method, named, again))
    by_number = run(Run("fedran", method, dataset, stream))
    assert by_name.acc == by_number.acc
    assert by_name.classes == [str(names[c]) for c in by_number.classes]
    assert Result.from_json(by_name.to_json()) == by_name


@pytest.mark.parametrize("key", ["exact", "fedran", "fedran-margin", "fedran-prototype", "fedcof"])
def test_a_client_whose_rows_all_lack_labels_takes_part(key, dataset, stream):
    first = stream.tasks[0]
    hidden = (np.zeros(len(first.rows[0]), dtype=bool), *first.labelled[1:])
    odd = replace(stream, tasks=(replace(first, labelled=hidden), *stream.tasks[1:]))
    params = {"out_features": 32} if key != "fedcof" else {}
    found = run(Run(key, make_method(key, params), dataset, odd, gram_error=True))
    assert found.tasks[0].label_rate[0] == 0.0
    assert found.A_T > 60


def test_natural_clients_run(dataset):
    stream = make_stream(
        dataset.y_train, n_tasks=2, seed=0, partitioner="natural", groups=dataset.groups
    )
    found = run(Run("fedncm", make_method("fedncm"), dataset, stream))
    assert len(found.tasks[0].bytes_up) == 4


def test_a_task_that_cannot_be_tested_is_refused_before_it_starts(dataset):
    seen = dataset.y_test > 0
    untested = replace(dataset, X_test=dataset.X_test[seen], y_test=dataset.y_test[seen])
    rows = [np.flatnonzero(dataset.y_train == c) for c in (0, 1)]
    stream = Stream((Task((0,), (rows[0],)), Task((1,), (rows[1],))), {})
    with pytest.raises(ValueError, match="task 1 cannot be tested"):
        Run("fedncm", make_method("fedncm"), untested, stream)


def test_a_method_that_diverges_says_so(dataset, stream):
    class Diverging(Wanderer):
        def embed(self, state, X):
            return super().embed(state, X) * (np.nan if len(state["means"]) > 4 else 1.0)

    with pytest.raises(ValueError, match="diverged"):
        run(Run("wanderer", Diverging(), dataset, stream))


def test_a_drift_that_was_not_measured_does_not_meet_a_budget(dataset, stream):
    empty = np.zeros(0, dtype=np.int64)
    tasks = [Task(t.classes, (empty, np.concatenate(t.rows))) for t in stream.tasks]
    job = Run("w", Wanderer(), dataset, Stream(tuple(tasks), {}), budgets={"drift": 0.01})
    found = run(job)
    assert found.drift == []
    assert not metrics.budgets_met(found).get("drift", False)
