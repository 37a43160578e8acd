"""Real targets: the same sums and solve as the classifier, checked against dense ridge."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import StandardScaler

from fedran import FederatedScaler, FedRANClassifier, FedRANRegressor, Ridge
from helpers.core.reference import quick


@quick
@given(
    st.integers(2, 60),
    st.integers(1, 40),
    st.integers(1, 3),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([0.0, 1e4]),
    st.integers(0, 2**32 - 1),
)
def test_equals_the_dense_ridge_of_centred_targets(n, M, T, dtype, shift, seed):
    rng = np.random.default_rng(seed)
    X, Y = rng.standard_normal((n, 3)).astype(dtype), rng.standard_normal((n, T)) + shift
    weights = rng.random(n) + 0.1
    model = FedRANRegressor(M, ridge=Ridge.absolute(0.5)).fit(X, Y, weights)
    H, mean = model.phi_(X).astype(float), np.average(Y, axis=0, weights=weights)
    G = (H.T * weights) @ H + 0.5 * np.eye(M)
    W = np.linalg.solve(G, (H.T * weights) @ (Y - mean))
    np.testing.assert_allclose(model.predict(X), H @ W + mean, atol=1e-4 + 1e-8 * shift)


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.mark.parametrize("targets", [1, 2])
def test_sums_and_batches_equal_the_pooled_fit(diabetes, targets):
    X, y = diabetes
    Y = y if targets == 1 else np.stack([y, X[:, 0] - 1000 * y], axis=1)
    whole = FedRANRegressor(256).fit(X, Y)
    a, b = (FedRANRegressor(256).fit(X[i:200:2], Y[i:200:2]) for i in range(2))
    total = (a + b).partial_fit(X[200:], Y[200:])
    assert total.head_.diagnosis.lam == pytest.approx(whole.head_.diagnosis.lam)
    expected = whole.predict(X)
    assert expected.shape == Y.shape
    np.testing.assert_allclose(total.predict(X), expected, atol=1e-5 * np.abs(Y).max())
    moved = FedRANRegressor(256).fit(X, Y + 1e5).predict(X)
    np.testing.assert_allclose(moved - 1e5, expected, atol=1e-4 * np.abs(Y).max())


def test_the_ridge_is_chosen_well_and_other_models_are_refused(diabetes):
    X, y = diabetes
    found = [cross_val_score(FedRANRegressor(512, ridge=r), X, y, cv=3).mean() for r in ("cv", 1)]
    assert found[0] > max(0.45, found[1] + 0.02)
    model = FedRANRegressor(64).fit(X, y)
    with pytest.raises(TypeError, match="unsupported operand"):
        model + FedRANClassifier(64).fit(X, y > 100)
    with pytest.raises(ValueError, match="columns of y is 1 in one"):
        model + FedRANRegressor(64).fit(X[1:], np.stack([y, y], axis=1)[1:])
    with pytest.raises(ValueError, match="y must have 1 columns, got 2"):
        model.partial_fit(X, np.stack([y, y], axis=1))
    scaled = FedRANRegressor(64, scaler=FederatedScaler()).fit(3 * X + 1, y)
    np.testing.assert_allclose(scaled.predict(3 * X + 1), model.predict(X), atol=0.05)
    assert np.all(FedRANRegressor(64).fit(X, np.full(len(X), 7.0)).predict(X) == 7)
