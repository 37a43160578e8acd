"""FedRAN with few labels: masks, pseudo-labels and their figures, computed by hand."""

import numpy as np
import pytest

from fedran.data.dataset import Dataset
from fedran_bench.methods.analytic.fedran import FedRAN, FedRANMargin, FedRANPrototype
from fedran_bench.methods.protocol import ClientData, Spec
from fedran_bench.run.runner import PreparedJob, run
from fedran_bench.streams import make_stream
from helpers.bench.toy_federation import distance, in_order, random_features, ridge

M, LAM = 48, 40.0
SETTINGS = {"out_features": M, "rank": 500, "precision": "float32", "lam": LAM}


@pytest.fixture(scope="module", params=[0, 1])
def dataset(request):
    rng = np.random.default_rng(request.param)
    centres = rng.standard_normal((6, 10))
    y = np.repeat(np.arange(6), 40)
    X = (centres[y] + 1.4 * rng.standard_normal((240, 10))).astype(np.float32)
    train = np.arange(240) % 4 > 0
    return Dataset("toy", "features", X[train], y[train], X[~train], y[~train])


def stream_of(dataset, rate):
    return make_stream(dataset.y_train, n_tasks=2, n_clients=3, beta=0.5, seed=4, label_rate=rate)


def nearest_prototype(Z, y, tau):
    """Label or None for each row; y is None where there is no label."""
    Z = Z.astype(np.float64)
    classes = in_order([c for c in y if c is not None])
    means = [np.mean([z for z, c in zip(Z, y, strict=True) if c == k], axis=0) for k in classes]
    given = list(y)
    for i, c in enumerate(y):
        if c is None and classes:
            cosines = [Z[i] @ m / (np.linalg.norm(Z[i]) * np.linalg.norm(m)) for m in means]
            if max(cosines) >= tau:
                given[i] = classes[int(np.argmax(cosines))]
    return given


def ridge_margin(Z, y, margin, refit):
    """A ridge at 0.1 mean |h|^2 on the labelled rows; accepted where it leads by the margin."""
    H = random_features(Z, M, 0)
    classes = in_order([c for c in y if c is not None])

    def decide(labels):
        known = [i for i, c in enumerate(labels) if c is not None]
        lam = 0.1 * np.mean([H[i] @ H[i] for i in known])
        scores = H @ ridge(H[known], [labels[i] for i in known], classes, lam)
        given = list(y)
        for i, c in enumerate(y):
            if c is None:
                ranked = np.sort(scores[i])
                lead = ranked[-1] - (ranked[-2] if len(classes) > 1 else 0.3)
                given[i] = classes[int(scores[i].argmax())] if lead > margin else None
        return given

    if not classes:
        return list(y)
    first = decide(y)
    return decide(first) if refit else first


RULES = [
    (FedRANPrototype(**SETTINGS, tau=0.5), lambda Z, y: nearest_prototype(Z, y, 0.5)),
    (FedRANPrototype(**SETTINGS, tau=0.7), lambda Z, y: nearest_prototype(Z, y, 0.7)),
    (FedRANMargin(**SETTINGS), lambda Z, y: ridge_margin(Z, y, 0.1, True)),
    (
        FedRANMargin(**SETTINGS, margin=0.3, refit=False),
        lambda Z, y: ridge_margin(Z, y, 0.3, False),
    ),
]

NAMES = ["tau 0.5", "tau 0.7", "margin 0.1, refit", "margin 0.3"]


def by_hand(dataset, task, rule):
    """Accepted share and precision of each client; None where there is nothing to say."""
    accepted, precision = [], []
    for rows, mask in zip(task.rows, task.labelled, strict=True):
        truth = dataset.y_train[rows].tolist()
        y = [c if has else None for c, has in zip(truth, mask, strict=True)]
        if None not in y:
            accepted.append(None)
            precision.append(None)
            continue
        given = rule(dataset.X_train[rows], y)
        new = [i for i, c in enumerate(y) if c is None and given[i] is not None]
        accepted.append(len(new) / y.count(None))
        right = sum(given[i] == truth[i] for i in new)
        precision.append(right / len(new) if new else None)
    return accepted, precision


def same(found, expected):
    if set(expected) == {None}:
        return found is None
    return found == [None if v is None else pytest.approx(v) for v in expected]


@pytest.mark.parametrize(("method", "rule"), RULES, ids=NAMES)
@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_accepted_and_precision_are_those_of_the_clients_own_rows(dataset, method, rule, rate):
    stream = stream_of(dataset, rate)
    result = run(PreparedJob("ssl", method, dataset, stream))
    for task, record in zip(stream.tasks, result.tasks, strict=True):
        accepted, precision = by_hand(dataset, task, rule)
        assert same(record.accepted, accepted)
        assert same(record.precision, precision)
        assert same(record.label_rate, [m.mean() if len(m) else None for m in task.labelled])


@pytest.mark.parametrize(("method", "rule"), RULES, ids=NAMES)
def test_the_head_is_the_ridge_over_given_and_accepted_labels(dataset, method, rule):
    stream = stream_of(dataset, 0.3)
    X, y = learn(dataset, stream, rule)
    state = play(dataset, stream, method)
    assert distance(state.head.weights, ridge(random_features(X, M, 0), y, in_order(y), LAM)) < 1e-3


def test_without_a_rule_unlabelled_rows_are_left_out(dataset):
    stream, method = stream_of(dataset, 0.3), FedRAN(**SETTINGS)
    X, y = learn(dataset, stream, lambda Z, y: y)
    assert len(y) < 0.4 * len(dataset.y_train)
    state = play(dataset, stream, method)
    assert distance(state.head.weights, ridge(random_features(X, M, 0), y, in_order(y), LAM)) < 1e-3
    result = run(PreparedJob("fedran", method, dataset, stream))
    assert all(t.accepted is None and t.precision is None for t in result.tasks)


def learn(dataset, stream, rule):
    """Rows with a label, given or accepted, of all tasks and clients."""
    X, y = [], []
    for task in stream.tasks:
        for rows, mask in zip(task.rows, task.labelled, strict=True):
            truth = dataset.y_train[rows].tolist()
            known = rule(
                dataset.X_train[rows],
                [c if has else None for c, has in zip(truth, mask, strict=True)],
            )
            X += [x for x, c in zip(dataset.X_train[rows], known, strict=True) if c is not None]
            y += [c for c in known if c is not None]
    return np.array(X), y


def play(dataset, stream, method):
    """The server's state after the stream, its clients called as the runner should."""
    names = tuple(f"client-{k}" for k in range(3))
    state = method.init(Spec(10, tuple(t.classes for t in stream.tasks), names), 0)
    for t, task in enumerate(stream.tasks):
        uploads = {}
        for name, rows, mask in zip(names, task.rows, task.labelled, strict=True):
            labels = dataset.y_train[rows].tolist()
            y = [c if has else None for c, has in zip(labels, mask, strict=True)]
            data = ClientData(name, str(t), dataset.X_train[rows], y)
            uploads[name] = method.client(None, b"", data, 0)[1]
        state = method.aggregate(state, t, 0, uploads)
    return state
