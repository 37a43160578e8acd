"""Public noisy sums, and the summary that they give."""

import math

import numpy as np
import pytest

import fedran
from fedran.core.fingerprint import Fingerprint
from fedran.core.private.dp import Budget, Mechanism
from fedran.core.private.noisy_sums import NoisySums, corrected, mean_row, noisy_ridge
from fedran.core.sums.class_sums import ClassSums


def noise_matrix(d, variance, rng):
    """Symmetric, with this variance on the diagonal and half of it off the diagonal."""
    upper = np.triu(rng.standard_normal((d, d)) * math.sqrt(variance / 2), 1)
    return upper + upper.T + np.diag(rng.standard_normal(d) * math.sqrt(variance))


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
    assert error.mean() < 0.08 * np.mean(truth)


def release_of(H, codes, classes, variance=0.0):
    """The sums of rows without noise, stated to have noise of this variance."""
    onehot = np.eye(len(classes))[codes]
    norm = float(np.linalg.norm(H, axis=1).max())
    counts = onehot.sum(axis=0)
    return NoisySums(classes, H.T @ H, H.T @ onehot, counts, norm, variance, variance, variance)


def test_without_noise_the_summary_is_that_of_the_rows():
    rng = np.random.default_rng(5)
    H, codes = rng.standard_normal((60, 7)), rng.integers(0, 3, 60)
    mark = Fingerprint.of(backbone="b")
    found = release_of(H, codes, ("a", "b", "c")).summary(mark).validate()
    exact = fedran.summarize(H, np.array(["a", "b", "c"])[codes], rank=7, center=None)
    assert np.allclose(found.factor @ found.factor.T, H.T @ H, atol=1e-4)
    assert np.allclose(found.class_sums, exact.class_sums)
    assert (found.classes, found.counts) == (exact.classes, exact.counts)
    assert found.accounts.energy == pytest.approx(exact.accounts.energy, rel=1e-5)
    assert found.fingerprint == mark


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("n", [0, 3, 40, 2000])
def test_every_release_gives_a_summary_that_an_aggregator_accepts(epsilon, n):
    rng = np.random.default_rng(n)
    H = rng.standard_normal((n, 12))
    H /= np.linalg.norm(H, axis=1, keepdims=True)
    phi = fedran.RandomFeatures(12, 12, projected=False)
    y = rng.integers(0, 4, n)
    release = Mechanism(12, Budget(epsilon)).privatise(H, y, range(4), rng.bytes)
    summary = release.summary(phi.fingerprint).validate()
    again = fedran.decode(fedran.encode(summary, "float32"))
    agg = fedran.Aggregator(12, fingerprint=phi.fingerprint)
    assert agg.absorb(again, client="sum", task="may")


def test_classes_that_noise_alone_explains_are_left_out():
    H, codes = np.eye(3)[[0] * 30 + [1] * 50], np.array([0] * 30 + [1] * 50)
    assert release_of(H, codes, ("a", "b", "c"), variance=100.0).summary().classes == ("b",)
    assert release_of(H, codes, ("a", "b", "c"), variance=49.0).summary().classes == ("a", "b")


def test_many_tasks_give_a_classifier_as_good_as_the_rows_allow():
    rng = np.random.default_rng(6)
    centres = rng.standard_normal((6, 16))
    codes = rng.integers(0, 6, 8000)
    rows = centres[codes] + 0.5 * rng.standard_normal((8000, 16))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    agg = fedran.Aggregator(16)
    mechanism = Mechanism(16, Budget(1.0))
    for t, own in enumerate(([0, 1, 2], [3, 4, 5])):
        part = np.flatnonzero(np.isin(codes[:6000], own))
        release = mechanism.privatise(rows[part], codes[part], own, rng.bytes)
        agg.absorb(release.summary(), client="all", task=str(t))
        mechanism = mechanism.centred(mean_row(agg.class_sums))
    head = agg.solve(noisy_ridge(agg.accounts, 16))
    assert np.mean(head.predict(rows[6000:]) == codes[6000:]) > 0.9


def test_the_mean_row_is_that_of_all_rows():
    H, codes = np.random.default_rng(0).standard_normal((20, 3)), np.arange(20) % 2
    assert np.allclose(mean_row(release_of(H, codes, (0, 1)).summary().sums), H.mean(axis=0))
    assert mean_row(ClassSums.empty(3)).tolist() == [0, 0, 0]
