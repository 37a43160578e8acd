"""LoRanPAC written with dense SVDs."""

import numpy as np

from helpers.bench.toy_federation import gram_and_sums, in_order, relu_features


def truncated(blocks, M):
    """U (M, r) and sigma (r,) after every block: rank min(round(.75 n), 10000, .75 M)."""
    U, sigma, n = np.zeros((M, 0)), np.zeros(0), 0
    for H in blocks:
        n += len(H)
        r = int(min(round(0.75 * n), 10_000, 0.75 * M))
        U, sigma, _ = np.linalg.svd(np.concatenate([U * sigma, H.T], axis=1), full_matrices=False)
        U, sigma = U[:, :r], sigma[:r]
        yield U, sigma


def pipeline(toy, M, seed, upto=3):
    """U diag(sigma^-2) U'B over the first tasks, and its factor."""
    Z = [np.concatenate([X for X, _ in task]) for task in toy.tasks[:upto]]
    *_, (U, sigma) = truncated([relu_features(z, M, seed) for z in Z], M)
    X, y = toy.pooled(upto)
    _, B = gram_and_sums(relu_features(X, M, seed), y, in_order(y))
    return U @ ((U.T @ B) / (sigma**2)[:, None]), U * sigma
