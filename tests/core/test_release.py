"""Public noisy sums and their classifier."""

import math

import numpy as np
import pytest

from fedran.core.dp import Budget, Mechanism
from fedran.core.fingerprint import Fingerprint
from fedran.core.release import Release, corrected


def noise_matrix(d, variance, rng):
    """Symmetric, with this variance on the diagonal and half of it off the diagonal."""
    upper = np.triu(rng.standard_normal((d, d)) * math.sqrt(variance / 2), 1)
    return upper + upper.T + np.diag(rng.standard_normal(d) * math.sqrt(variance))


def made(classes, d=3, seed=0):
    rng = np.random.default_rng(seed)
    C = len(classes)
    gram = noise_matrix(d, 1.0, rng)
    return Release(classes, gram, rng.random((d, C)), rng.random(C), rng.random(), rng.random(C))


def test_addition_aligns_classes_and_adds_variances():
    a, b = made(("x", "y"), seed=1), made(("y", "z"), seed=2)
    total = a + b
    assert total.classes == ("x", "y", "z")
    assert np.array_equal(total.gram, a.gram + b.gram)
    assert total.gram_variance == a.gram_variance + b.gram_variance
    assert np.array_equal(total.sums[:, 1], a.sums[:, 1] + b.sums[:, 0])
    assert np.array_equal(total.sums[:, 2], b.sums[:, 1])
    assert total.counts.tolist() == [a.counts[0], a.counts[1] + b.counts[0], b.counts[1]]
    assert total.sums_variance[1] == a.sums_variance[1] + b.sums_variance[0]


def test_addition_needs_the_same_features():
    with pytest.raises(ValueError, match="expected 3 features, got 4"):
        made(("x",)) + made(("x",), d=4)
    with pytest.raises(TypeError):
        made(("x",)) + 1


def test_the_mean_is_that_of_all_rows():
    release = made(("x", "y"))
    assert np.allclose(release.mean, release.sums.sum(axis=1) / max(1.0, release.counts.sum()))


@pytest.mark.parametrize("spread", [0.3, 2.0, 20.0])
def test_corrected_eigenvalues_are_what_the_gram_is_along_noisy_eigenvectors(spread):
    d, rng = 300, np.random.default_rng(4)
    G = np.diag(100.0 / (1 + np.arange(d)) + 5.0)
    truth, found, raw = [], [], []
    for _ in range(4):
        noisy, U = np.linalg.eigh(G + noise_matrix(d, 2 * spread**2 / d, rng))
        truth.append(np.einsum("ij,ij->j", U, G @ U))
        found.append(corrected(noisy, spread))
        raw.append(np.maximum(noisy, 0.0))
    error, before = (np.abs(np.mean(x, axis=0) - np.mean(truth, axis=0)) for x in (found, raw))
    assert error.mean() < 0.5 * before.mean()
    assert error.mean() < 0.06 * np.mean(truth)


def test_without_noise_the_classifier_is_the_ridge_solution():
    rng = np.random.default_rng(5)
    H, codes = rng.standard_normal((60, 7)), rng.integers(0, 3, 60)
    G, B = H.T @ H, H.T @ np.eye(3)[codes]
    release = Release((0, 1, 2), G, B, np.bincount(codes) / 1.0, 0.0, np.zeros(3))
    mark = Fingerprint.of(backbone="b")
    head = release.solve(mark, ridge=0.1)
    lam = 0.1 * np.trace(G) / 7
    assert np.allclose(head.weights, np.linalg.solve(G + lam * np.eye(7), B), rtol=1e-4)
    assert head.fingerprint == mark
    assert head.diagnosis.lam == pytest.approx(lam)
    assert head.diagnosis.n_rows == 60


def test_a_release_of_many_rows_classifies():
    rng = np.random.default_rng(6)
    centres = rng.standard_normal((5, 16))
    codes = rng.integers(0, 5, 4000)
    rows = centres[codes] + 0.5 * rng.standard_normal((4000, 16))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    names = np.array(["a", "b", "c", "d", "e"])
    mechanism = Mechanism(16, Budget(1.0))
    release = mechanism.privatise(rows[:3000], names[codes[:3000]], "abcde", rng.bytes)
    right = release.solve().predict(rows[3000:]) == names[codes[3000:]]
    assert right.mean() > 0.9


def test_a_release_of_no_rows_still_gives_a_classifier():
    mechanism = Mechanism(4, Budget(1.0))
    release = mechanism.privatise(np.zeros((0, 4)), [], ["a", "b"], np.random.default_rng(0).bytes)
    assert set(release.solve().predict(np.eye(4))) <= {"a", "b"}
    assert release.solve().diagnosis.n_rows >= 0
