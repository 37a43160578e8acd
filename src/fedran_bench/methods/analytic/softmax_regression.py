"""Softmax regression by minibatch AdamW, for methods whose server trains a linear head."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, like, namespace

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
"""The usual constants of Adam."""


def softmax_regression(
    X: Array,
    codes: NDArray[np.int64],
    n_classes: int,
    *,
    epochs: int,
    batch: int,
    lr: float,
    weight_decay: float,
    seed: int,
) -> Array:
    """Weights (d, C) that minimise the mean cross-entropy of ``softmax(X W)`` against ``codes``.

    AdamW with a constant learning rate, started at zero: the problem is convex. The rows are
    permuted before every epoch. The same code runs in NumPy and on a torch device, with the same
    permutations. A column of ones in X gives an intercept, which decays like the other weights,
    as in ``torch.optim.AdamW``. 6 n d C operations per epoch.
    """
    xp = namespace(X)
    W = like(np.zeros((X.shape[1], n_classes), dtype=np.float32), X)
    mean, square = xp.zeros_like(W), xp.zeros_like(W)
    y, index = like(codes, X), like(np.arange(min(batch, len(codes))), X)
    random = np.random.RandomState(seed)
    step = 0
    for _ in range(epochs):
        order = like(random.permutation(len(codes)), X)
        for i in range(0, len(codes), batch):
            rows = order[i : i + batch]
            part = X[rows]
            error = part @ W
            error -= xp.max(error, axis=1, keepdims=True)
            error = xp.exp(error)
            error /= xp.sum(error, axis=1, keepdims=True)
            error[index[: error.shape[0]], y[rows]] -= 1
            gradient = part.T @ (error / error.shape[0])
            step += 1
            mean += (1 - BETA1) * (gradient - mean)
            square += (1 - BETA2) * (gradient * gradient - square)
            scale = xp.sqrt(square / (1 - BETA2**step)) + EPSILON
            W *= 1 - lr * weight_decay
            W -= (lr / (1 - BETA1**step)) * mean / scale
    return W
