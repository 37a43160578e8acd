"""Methods start with a task that has no rows or no labels; zero features are refused."""

import pytest

from helpers.bench.hostile import make
from helpers.bench.toy_federation import make_toy, with_images

NOTHING = [
    "exact",
    "stsa",
    "fed3r",
    "fedcof",
    "fedcgs",
    "gh-ofl-lda",
    "gh-ofl-fishermix",
    "fedpft",
    "klda",
    "deepafl",
    "ranpac",
    "send-features",
    "send-features-8bit",
    "send-images",
]
CASES = [(key, what) for key in NOTHING for what in ("no rows", "no labels")]


@pytest.mark.parametrize(("key", "what"), CASES)
def test_a_first_task_with_nothing_in_it_is_passed_over(key, what):
    toy, method = with_images(make_toy(0)), make(key)
    for k, (X, y) in enumerate(toy.tasks[0]):
        keep = len(X) if what == "no labels" else 0
        images = toy.images[0, k][:keep]
        toy.tasks[0][k] = (X[:keep], [None] * keep if what == "no labels" else y[:keep])
        toy.images[0, k] = images
    state = method.init(toy.spec, 0)
    state = method.aggregate(state, 0, 0, toy.uploads(method, 0))
    state = method.aggregate(state, 1, 0, toy.uploads(method, 1))
    assert len(method.predict(state, toy.X_test)) == 200


@pytest.mark.parametrize("key", ["afl", "loranpac"])
def test_zero_features_have_no_direction_to_solve_in(key):
    toy, method = make_toy(0), make(key)
    toy.tasks[0] = [(0 * X, y) for X, y in toy.tasks[0]]
    with pytest.raises(ValueError, match="all features are zero"):
        method.aggregate(method.init(toy.spec, 0), 0, 0, toy.uploads(method, 0))
