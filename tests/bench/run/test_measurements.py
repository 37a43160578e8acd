"""What the runner measures equals what plain loops over the protocol give."""

from dataclasses import replace

import numpy as np
import pytest

from fedran.paper import prototype_labels
from fedran_bench.methods.protocol import ClientData, Spec
from fedran_bench.methods.registry import make_method
from fedran_bench.run.runner import PreparedJob, run
from helpers.bench.wanderer import CLIENTS, ROUNDS, Wanderer, labels_of


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


def test_accuracy_equals_that_of_plain_loops(dataset, stream, result):
    method = Wanderer()
    for t, state in enumerate(by_hand(method, dataset, stream, 2)):
        for j in range(t + 1):
            rows = np.isin(dataset.y_test, stream.tasks[j].classes)
            right = method.predict(state, dataset.X_test[rows]) == dataset.y_test[rows]
            assert result.acc[t][j] == pytest.approx(right.mean())
    assert [len(row) for row in result.acc] == [1, 2, 3]


def test_drift_is_the_mean_distance_of_reference_rows_from_their_first_features(
    dataset, stream, result
):
    method, rows = Wanderer(), stream.tasks[1].rows[0]
    X = dataset.X_train[rows]
    first, second = (method.embed(s, X) for s in by_hand(method, dataset, stream, 2)[1:])
    moved = np.mean([np.linalg.norm(b - a) for a, b in zip(first, second, strict=True)])
    assert result.drift == [0.0, pytest.approx(moved)]
    assert moved > 0.1


def test_frozen_methods_report_no_drift(dataset, stream):
    assert run(PreparedJob("fedncm", make_method("fedncm"), dataset, stream)).drift == []


def test_bytes_are_summed_over_rounds(dataset, stream):
    method = Wanderer()
    found = run(PreparedJob("wanderer", method, dataset, stream, seed=2))
    for t, record in enumerate(found.tasks):
        for k in range(CLIENTS):
            calls = [c for c in method.carried if c[:2] == (f"client-{k}", str(t))]
            assert len(calls) == ROUNDS == record.rounds
            assert record.bytes_up[k] == sum(c[2] for c in calls)
            assert record.bytes_down[k] == sum(c[3] for c in calls)
        assert record.formula_bytes == 10 * 2 * (t + 1)
        assert record.peak_rss > 2**20
    last = by_hand(method, dataset, stream, 2)[-1]
    assert found.bytes_down_final == len(method.broadcast(last, 3, 0))


def test_classes_and_test_rows_are_those_of_the_stream(dataset, stream, result):
    assert result.classes == [c for t in stream.tasks for c in t.classes]
    rows = [int(np.isin(dataset.y_test, t.classes).sum()) for t in stream.tasks]
    assert result.test_rows == rows


def test_label_rates_equal_those_of_the_label_masks(stream, result):
    for task, record in zip(stream.tasks, result.tasks, strict=True):
        shares = [pytest.approx(m.mean()) if len(m) else None for m in task.labelled]
        assert record.label_rate == shares
        assert record.accepted is None
        assert record.precision is None


def test_pseudo_labels_are_counted_against_the_truth(dataset, stream):
    found = run(
        PreparedJob("p", make_method("fedran-prototype", {"out_features": 32}), dataset, stream)
    )
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


def test_extraction_seconds_are_rows_times_seconds_per_row(dataset, stream, result):
    for task, record in zip(stream.tasks, result.tasks, strict=True):
        assert record.seconds.extraction == [0.5 * len(r) for r in task.rows]
    untimed = replace(dataset, seconds_per_row=None)
    found = run(PreparedJob("fedncm", make_method("fedncm"), untimed, stream))
    assert found.tasks[0].seconds.extraction is None


def test_a_method_that_diverges_says_so(dataset, stream):
    class Diverging(Wanderer):
        def embed(self, state, X):
            return super().embed(state, X) * (np.nan if len(state["means"]) > 4 else 1.0)

    with pytest.raises(ValueError, match="diverged"):
        run(PreparedJob("wanderer", Diverging(), dataset, stream))
