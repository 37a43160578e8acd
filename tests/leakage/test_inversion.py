"""Rows and mean features from class sums and factors, where the truth is known."""

import numpy as np
import pytest

import fedran
from fedran.leakage.inversion import _activation, recover_means
from helpers.leaky_sites import summary, world

KINDS = ["cosine", "hellinger", "relu"]


def cosines(a, b):
    return np.sum(a * b, axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def recovered(w, s):
    counts = np.asarray(s.counts, dtype=float)
    means = s.sums.means.T.astype(np.float32)
    return recover_means(w.phi, means, counts, s.accounts.mean_row_energy)


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_with_one_row_gives_the_row_back(kind):
    w = world((1, 1, 30), kind=kind)
    found = recovered(w, summary(w))
    truth = w.phi.prepare(w.Z)[:2]
    np.testing.assert_allclose(found[:2], truth, atol=2e-4 * np.abs(truth).max())


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_of_the_default_upload_hides_little_of_a_single_row(kind):
    w = world((1, 1, 30), kind=kind)
    found = recovered(w, fedran.decode(fedran.encode(summary(w, 8))))
    assert min(cosines(found[:2], w.phi.prepare(w.Z)[:2])) > 0.99


@pytest.mark.parametrize("kind", KINDS)
def test_class_means_give_mean_features(kind):
    w = world((2, 5, 40), d=16, M=1024, kind=kind)
    X = w.phi.prepare(w.Z)
    truth = np.stack([X[w.y == c].mean(axis=0) for c in range(3)])
    assert min(cosines(recovered(w, summary(w)), truth)) > 0.99


@pytest.mark.parametrize("kind", ["cosine", "relu"])
@pytest.mark.parametrize("deviation", [0.0, 0.4, 1.5])
def test_the_expected_activation_and_its_slope(kind, deviation):
    rng = np.random.default_rng(0)
    u = np.linspace(-2.5, 2.5, 11)[None, :]
    sample = u.T + deviation * rng.standard_normal((11, 200_000))
    value, slope = _activation(kind, u, np.full((1, 1), deviation**2))
    phi = fedran.RandomFeatures(1, 1, kind)
    phi.__dict__["projection"] = np.ones((1, 1), dtype=np.float32)
    mapped = phi.project(sample.reshape(-1, 1)).reshape(sample.shape)
    np.testing.assert_allclose(value[0], mapped.mean(axis=1), atol=0.015)
    step = 1e-4
    higher, _ = _activation(kind, u + step, np.full((1, 1), deviation**2))
    lower, _ = _activation(kind, u - step, np.full((1, 1), deviation**2))
    np.testing.assert_allclose(slope, (higher - lower) / (2 * step), atol=1e-3)
