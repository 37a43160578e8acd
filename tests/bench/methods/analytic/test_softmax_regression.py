"""Softmax regression against torch's AdamW, step for step, and against the optimum."""

import numpy as np
import pytest
from scipy.optimize import minimize

from fedran_bench.methods.analytic.softmax_regression import softmax_regression


def problem(seed, n=121, d=5, n_classes=4):  # 121: no gradient is zero but for rounding
    rng = np.random.default_rng(seed)
    codes = rng.integers(n_classes, size=n)
    X = (rng.standard_normal((n_classes, d))[codes] + rng.standard_normal((n, d))).astype("f4")
    return np.hstack([X, np.ones((n, 1), "f4")]), codes


def loss(W, X, codes):
    scores = X.astype(np.float64) @ W
    top = scores.max(axis=1)
    logsum = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
    return np.mean(logsum - scores[np.arange(len(codes)), codes])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("batch", "decay"), [(121, 0.0), (50, 0.1), (1, 0.01)])
def test_every_step_is_that_of_adamw_in_torch(seed, batch, decay):
    torch = pytest.importorskip("torch")
    X, codes = problem(seed)
    options = {"epochs": 3, "batch": batch, "lr": 0.02, "weight_decay": decay, "seed": seed}
    found = softmax_regression(X, codes, 4, **options)
    W = torch.zeros(6, 4, requires_grad=True)
    optimiser = torch.optim.AdamW([W], lr=0.02, weight_decay=decay)
    random = np.random.RandomState(seed)
    for _ in range(3):
        order = random.permutation(len(codes))
        for i in range(0, len(codes), batch):
            rows = order[i : i + batch]
            optimiser.zero_grad()
            scores = torch.tensor(X[rows]) @ W
            torch.nn.functional.cross_entropy(scores, torch.tensor(codes[rows])).backward()
            optimiser.step()
    assert np.allclose(found, W.detach().numpy(), atol=2e-5)
    moved = softmax_regression(torch.tensor(X), codes, 4, **options)
    assert isinstance(moved, torch.Tensor)
    assert np.allclose(found, moved.numpy(), atol=2e-5)


@pytest.mark.parametrize("seed", range(3))
def test_many_epochs_reach_the_least_cross_entropy(seed):
    X, codes = problem(seed)
    options = {"epochs": 1500, "batch": 121, "lr": 0.05, "weight_decay": 0.0}
    W = softmax_regression(X, codes, 4, **options, seed=seed)
    best = minimize(lambda w: loss(w.reshape(6, 4), X, codes), np.zeros(24), method="L-BFGS-B").fun
    assert best - 1e-4 < loss(W, X, codes) < best + 1e-3
    assert loss(np.zeros((6, 4)), X, codes) > best + 0.3


def test_large_scores_do_not_overflow():
    X, codes = problem(0)
    options = {"epochs": 2, "batch": 30, "weight_decay": 0.0, "seed": 0}
    W = softmax_regression(1e4 * X, codes, 4, lr=1.0, **options)
    assert np.all(np.isfinite(W))
