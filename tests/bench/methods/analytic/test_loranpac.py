"""LoRanPAC against a dense truncated SVD in float64."""

import numpy as np
import pytest

from fedran_bench.methods.analytic import loranpac
from fedran_bench.methods.analytic.loranpac import LoRanPAC
from helpers.loranpac_reference import pipeline, truncated
from helpers.toy_federation import (
    assert_labels,
    distance,
    gram_and_sums,
    in_order,
    make_toy,
    relu_features,
)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("M", [24, 60, 400])
@pytest.mark.parametrize("upto", [1, 2, 3])
def test_equals_the_dense_pipeline_after_every_task(seed, M, upto):
    toy = make_toy(seed)
    state = toy.play(LoRanPAC(M), seed, upto)
    wanted, factor = pipeline(toy, M, seed, upto)
    assert state.factor.shape == factor.shape
    assert distance(state.factor @ state.factor.T, factor @ factor.T) < 1e-5
    assert distance(state.head.weights, wanted) < 2e-2  # float32, (sigma_1 / sigma_r)^2 = 1e4


@pytest.mark.parametrize("kind", ["int", "str", "mixed"])
def test_scores_are_plain(kind):
    toy = make_toy(3, kind)
    method = LoRanPAC(60)
    state = toy.play(method)
    W, _ = pipeline(toy, 60, 0)
    classes = in_order(toy.pooled()[1])
    assert list(state.head.classes) == classes
    scores = relu_features(toy.X_test, 60, 0) @ W
    assert_labels(method.predict(state, toy.X_test), scores, classes, clear=1e-2)


def test_the_accounts_know_what_was_cut():
    toy = make_toy(1)
    state = toy.play(LoRanPAC(60))
    H = relu_features(toy.pooled()[0], 60, 0)
    assert np.isclose(state.accounts.energy, np.sum(H * H), rtol=1e-4)
    kept = np.sum(pipeline(toy, 60, 0)[1] ** 2)
    assert np.isclose(state.accounts.energy - state.accounts.cut, kept, rtol=1e-4)
    assert state.accounts.n_rows == len(H)


def test_rows_beyond_a_block_are_taken_in_block_by_block(monkeypatch):
    monkeypatch.setattr(loranpac, "BLOCK_ROWS", 16)
    toy = make_toy(2)
    toy.tasks = toy.tasks[:1]
    H = relu_features(toy.pooled()[0], 200, 0)
    *_, (U, sigma) = truncated([H[i : i + 16] for i in range(0, len(H), 16)], 200)
    state = toy.play(LoRanPAC(200))
    assert distance(state.factor @ state.factor.T, (U * sigma**2) @ U.T) < 1e-5
    _, B = gram_and_sums(H, toy.pooled()[1], in_order(toy.pooled()[1]))
    wanted = U @ ((U.T @ B) / (sigma**2)[:, None])
    assert distance(state.head.weights, wanted) < 2e-2  # float32, (sigma_1 / sigma_r)^2 = 1e4


def test_the_rank_is_never_beyond_the_ceiling(monkeypatch):
    monkeypatch.setattr(loranpac, "MAX_RANK", 9)
    assert make_toy(0).play(LoRanPAC(60)).factor.shape == (60, 9)


@pytest.mark.parametrize("upto", [0, 1, 3])
def test_a_dumped_state_goes_on_as_if_nothing_had_happened(upto):
    toy = make_toy(4, "mixed")
    method = LoRanPAC(60)
    state = toy.play(method, upto=upto)
    again = method.load(method.dump(state), toy.spec, 0)
    for t in range(upto, 3):
        state = method.aggregate(state, t, 0, toy.uploads(method, t))
        again = method.aggregate(again, t, 0, toy.uploads(method, t))
    assert np.array_equal(state.factor, again.factor)
    assert np.array_equal(state.head.weights, again.head.weights)
    assert state.accounts.cut == again.accounts.cut
