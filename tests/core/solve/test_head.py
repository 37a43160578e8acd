from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedran
from fedran.core.errors import Refused
from fedran.core.solve.calibration import Calibration
from fedran.core.solve.head import Diagnosis, Head
from fedran.core.summarize import summarize
from fedran.core.sums.aggregator import Aggregator
from helpers.core.reference import quick

FINE = Diagnosis("test", 1.0, 0.0, 1, 1.0, 1.0, 0.0, 0.0, 0.0)


def head(weights, classes, diagnosis=FINE):
    return Head(np.asarray(weights, dtype=np.float32), tuple(classes), diagnosis)


@quick
@given(
    st.integers(0, 9),
    st.integers(1, 8),
    st.integers(1, 5),
    st.integers(0, 2**32 - 1),
    st.sampled_from([np.float32, np.float64, torch.float32, torch.float64]),
)
def test_scores_are_h_w_and_the_best_one_wins(n, M, C, seed, dtype):
    rng = np.random.default_rng(seed)
    W, H = rng.standard_normal((M, C)), rng.standard_normal((n, M))
    torchy = isinstance(dtype, torch.dtype)
    X = torch.as_tensor(H).to(dtype) if torchy else H.astype(dtype)
    one = head(W, range(C))
    for h in (one, one.to("cpu")):
        scores = h.scores(X)
        assert type(scores) is type(X)
        assert scores.dtype == X.dtype
        np.testing.assert_allclose(scores, H @ W, atol=1e-4)
        assert h.predict(X).tolist() == np.asarray(scores).argmax(axis=1).tolist()


@pytest.mark.parametrize(
    ("classes", "kind"), [((3, 7), np.int64), (("a", "b"), np.str_), ((3, "a"), np.object_)]
)
def test_predictions_are_labels_of_the_plainest_dtype(classes, kind):
    predicted = head(np.eye(2), classes).predict(np.eye(2)[[1, 0]])
    assert predicted.tolist() == [classes[1], classes[0]]
    assert issubclass(predicted.dtype.type, kind)


@pytest.mark.parametrize("M", [3, 40])
def test_weights_are_float32_and_the_head_moves_between_devices(M):
    agg = Aggregator(M)
    agg.absorb(summarize(np.eye(3, M), ["a", "b", "c"]), client="c", task="t")
    h = agg.solve()
    assert h.weights.dtype == np.float32
    assert h.out_features == M
    assert isinstance(h.to("cpu").weights, torch.Tensor)
    np.testing.assert_array_equal(h.to("cpu").to(None).weights, h.weights)
    assert h.predict(np.eye(3, M)).tolist() == ["a", "b", "c"]


def test_rows_of_the_wrong_width_are_refused():
    h = head(np.eye(2), (0, 1))
    for call in (h.scores, h.predict):
        with pytest.raises(ValueError, match=r"H must have 2 columns, .*; pass phi\(Z\), not Z"):
            call(np.ones((1, 3)))


@pytest.mark.parametrize(
    ("weights", "classes"),
    [
        (np.ones(3), (0,)),
        (np.ones((3, 2)), (0,)),
        (np.ones((3, 2)), (1, 0)),
        (np.ones((3, 2)), (0, 0)),
        (np.ones((3, 2)), ("a", 0)),
        (np.ones((3, 0)), ()),
    ],
)
def test_a_head_needs_one_column_per_class_in_order(weights, classes):
    with pytest.raises(Refused, match=r"^(weights|classes)"):
        head(weights, classes)


def test_a_row_is_rejected_if_another_label_is_close_to_the_best():
    codes = np.zeros(99, dtype=np.int64)
    scores = np.linspace(0.005, 0.985, 99)[:, None] * [0.0, 1.0]
    h = replace(head(np.eye(2), ("cat", "dog")), calibration=Calibration.of_scores(scores, codes))
    assert h.calibration.threshold(0.5, 2) == pytest.approx(0.5, abs=0.011)
    rows = np.array([[0.9, 0.1], [0.6, 0.7], [0.2, 0.1], [0.1, 0.8]])
    sets = h.prediction_sets(rows, 0.5)
    assert sets.tolist() == [[True, False], [True, True], [True, True], [False, True]]
    assert h.abstain(torch.as_tensor(rows), 0.5).tolist() == [False, True, True, False]
    assert h.predict(rows, reject=0.5).tolist() == ["cat", None, None, "dog"]
    assert h.predict(rows).tolist() == ["cat", "dog", "cat", "dog"]
    with pytest.raises(ValueError, match=r"no calibration.*head\.calibrate"):
        head(np.eye(2), (0, 1)).predict(rows, reject=0.5)
    with pytest.raises(ValueError, match=r"reject must lie between 0 and 1, .* got 2\.0"):
        h.predict(rows, reject=2.0)


@quick
@given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 999))
def test_novelty_of_all_directions_is_the_leverage_and_of_fewer_is_more(n, M, seed):
    rng = np.random.default_rng(seed)
    H, new = rng.standard_normal((n, M)), rng.standard_normal((5, M))
    new[0] = 0
    agg = Aggregator(M, dtype="float64")
    agg.absorb(summarize(H, [0] * n, None), client="c", task="t")
    h = agg.solve(novelty=M)
    lam, squares = h.diagnosis.lam, np.sum(new**2, axis=1)
    A = agg.gram() + lam * np.eye(M)
    leverage = np.einsum("ij,ij->i", new, np.linalg.solve(A, new.T).T)
    expected = np.where(squares > 0, lam * leverage / np.where(squares > 0, squares, 1), 1.0)
    found = h.novelty(new)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    fewer = agg.solve(novelty=max(1, M // 2))
    assert np.all(fewer.novelty(new) >= found - 1e-4)
    assert fewer.seen.shape[1] <= max(1, M // 2)
    back = fedran.decode(fedran.encode(h), fedran.Head)
    np.testing.assert_allclose(back.novelty(new), found, atol=5e-3)
    np.testing.assert_array_equal(h.to("cpu").novelty(torch.as_tensor(new)), found)


def test_novelty_needs_directions_that_a_head_can_have():
    with pytest.raises(ValueError, match="solve with novelty=64"):
        head(np.eye(2), (0, 1)).novelty(np.eye(2))
    with pytest.raises(Refused, match="seen"):
        replace(head(np.eye(2), (0, 1)), seen=np.eye(3))
    agg = Aggregator(2)
    agg.absorb(summarize(np.eye(2), [0, 1]), client="c", task="t")
    with pytest.raises(ValueError, match="novelty must be a positive integer or None"):
        agg.solve(novelty=0)
    for seen in (2 * np.eye(2), np.full((2, 2), np.nan), np.ones((2, 5))):
        blob = fedran.encode(replace(agg.solve(), seen=seen))
        with pytest.raises(Refused, match="seen"):
            fedran.decode(blob)
