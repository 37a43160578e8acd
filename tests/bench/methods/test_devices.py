"""On a torch device every method does what it does in NumPy."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedran_bench.methods.registry import METHODS, make_method, settings
from helpers.bench.toy_federation import distance, make_toy, with_images

SMALL = {"out_features": 48, "rank": 30, "dummies": 4, "lam": 500.0, "min_group": 1}
SMALL |= {"layers": 2, "members": 2, "gamma": 0.1}
KEYS = [
    k for k in METHODS if make_method(k, device="cpu").device and make_method(k).family != "trained"
]


@pytest.fixture(scope="module", autouse=True)
def torch():
    return pytest.importorskip("torch")


def both(key, **other):
    params = {name: v for name, v in {**SMALL, **other}.items() if name in settings(key)}
    return make_method(key, params), make_method(key, params, device="cpu")


def clear_rows(state, X):
    """Rows whose best score leads the second by more than rounding."""
    scores = np.sort(np.asarray(state.head.scores(np.asarray(state.phi(X)))), axis=1)
    return scores[:, -1] - scores[:, -2] > 1e-2 * np.abs(scores).max()


class Played(NamedTuple):
    """A method in NumPy and on a device, and what both learned from the same rows."""

    plain: Any
    there: Any
    state: Any
    other: Any


TOY = with_images(make_toy(0, "mixed"))


@pytest.fixture(scope="module")
def played():
    """What a method learned; every method learns once on either side."""

    def play(key):
        plain, there = both(key)
        return Played(plain, there, TOY.play(plain), TOY.play(there))

    return cache(play)


each = pytest.mark.parametrize("key", KEYS, scope="module")


@each
def test_predictions_and_weights_are_those_of_numpy(key, torch, played):
    plain, there, state, other = played(key)
    assert isinstance(other.head.weights, torch.Tensor)
    assert distance(np.asarray(other.head.weights), state.head.weights) < 2e-2
    clear = clear_rows(state, TOY.X_test)
    assert clear.mean() > 0.8
    found, wanted = there.predict(other, TOY.X_test), plain.predict(state, TOY.X_test)
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found[clear], wanted[clear])


@each
def test_an_upload_made_on_a_device_is_taken_in_without_one(key, played):
    plain, there, wanted, _ = played(key)
    mixed = TOY.play(plain, clients=there)
    clear = clear_rows(wanted, TOY.X_test)
    found = plain.predict(mixed, TOY.X_test)
    assert np.array_equal(found[clear], plain.predict(wanted, TOY.X_test)[clear])
