"""RanPAC and LoRanPAC equal float64 references where the ridge is small or rows are few."""

import numpy as np
import pytest

from fedran_bench.methods.analytic import ranpac
from fedran_bench.methods.analytic.loranpac import LoRanPAC
from helpers.loranpac_reference import pipeline
from helpers.toy_federation import distance, in_order, make_toy, ridge


def test_ranpac_searches_as_a_float64_grid_search_does_with_few_rows():
    rng = np.random.default_rng(1)
    H = rng.standard_normal((60, 300))
    codes = (H[:, :3] + 0.01 * rng.standard_normal((60, 3))).argmax(axis=1)
    H = H.astype(np.float32)
    F, rest, Y, errors = H[:48].astype(float), H[48:].astype(float), np.eye(3)[codes], {}
    for k in range(-8, 9):
        W = np.linalg.solve(F.T @ F + 10.0**k * np.eye(300), F.T @ Y[:48])
        errors[10.0**k] = np.mean((rest @ W - Y[48:]) ** 2)
    assert ranpac.search(H, codes, 3) == min(errors, key=errors.get)


@pytest.mark.parametrize(("d", "rows", "M"), [(32, 60, 400), (64, 100, 700)])
def test_loranpac_weights_equal_the_float64_pipeline(d, rows, M):
    toy = make_toy(0, d=d, rows=rows)
    assert distance(toy.play(LoRanPAC(M)).head.weights, pipeline(toy, M, 0)[0]) < 1e-4


@pytest.mark.parametrize("lam", [1e-2, 1e-4, 1e-6])
def test_ranpac_weights_are_right_at_a_small_lambda_and_fewer_rows_than_M(lam, monkeypatch):
    monkeypatch.setattr(ranpac, "search", lambda *_: lam)
    toy = make_toy(0, d=64)
    X, y = toy.pooled()
    P = np.random.RandomState(0).standard_normal((64, 300)).astype(np.float32)
    H = np.maximum(X.astype(np.float32) @ P, 0).astype(float)
    W = ridge(H, y, in_order(y), lam)
    assert distance(toy.play(ranpac.RanPAC(300)).head.weights, W) < 1e-2
