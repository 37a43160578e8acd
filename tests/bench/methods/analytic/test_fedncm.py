"""FedNCM against class means of the pooled rows."""

import numpy as np
import pytest

from fedran_bench.methods.analytic.class_means import FedNCM
from helpers.toy_federation import assert_labels, in_order, make_toy


def pooled_means(toy, upto=None):
    X, y = toy.pooled(upto)
    classes = in_order(y)
    means = []
    for c in classes:
        rows = [x for x, label in zip(X, y, strict=True) if label == c]
        means.append(sum(rows) / len(rows))
    return classes, means


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["int", "str", "mixed"])
@pytest.mark.parametrize("upto", [1, 3])
def test_holds_sum_and_count_of_the_pooled_rows(seed, kind, upto):
    toy = make_toy(seed, kind)
    state = toy.play(FedNCM(), upto=upto)
    classes, means = pooled_means(toy, upto)
    labels = toy.pooled(upto)[1]
    assert list(state.classes) == classes
    assert state.counts == tuple(labels.count(c) for c in classes)
    assert np.allclose(state.means.T, means, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["int", "str", "mixed"])
def test_predicts_the_largest_cosine(seed, kind):
    toy = make_toy(seed, kind)
    classes, means = pooled_means(toy)
    scores = [
        [x @ m / (np.linalg.norm(x) * np.linalg.norm(m)) for m in means]
        for x in toy.X_test.astype(np.float64)
    ]
    found = FedNCM().predict(toy.play(FedNCM()), toy.X_test)
    assert_labels(found, np.array(scores), classes)


def test_the_length_of_a_mean_does_not_matter():
    toy = make_toy(0)
    X, y = toy.tasks[0][0]
    far = X.copy()
    far[[c == y[0] for c in y]] *= 1000
    toy.tasks = [[(far, y)]]
    classes, means = pooled_means(toy)
    found = FedNCM().predict(toy.play(FedNCM()), toy.X_test)
    scores = np.array([[x @ m / np.linalg.norm(m) for m in means] for x in toy.X_test])
    assert_labels(found, scores, classes)
    assert len(set(found.tolist())) == len(classes)


def test_a_class_whose_rows_cancel_is_never_nearest_and_gives_no_nan():
    toy = make_toy(0)
    X = np.array([[1.0, 2.0], [-1.0, -2.0], [3.0, 0.0]], dtype=np.float32)
    toy.tasks, toy.X_test = [[(X, ["null", "null", "one"])]], X[2:]
    assert FedNCM().predict(toy.play(FedNCM()), toy.X_test).tolist() == ["one"]
