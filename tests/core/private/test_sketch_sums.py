"""Totals of a secure sum against dense float64 matrices, and the matrices that sketch them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedran.core.errors import Refused
from fedran.core.private.sketch_sums import (
    SketchSums,
    blind_omega,
    section_sizes,
    sketch_sums,
)
from helpers.core.reference import features, onehot, quick
from helpers.core.samples import CLASSES, dtypes, pooled, seeds, sites


@quick
@given(sites(), st.integers(1, 14), seeds, dtypes)
def test_totals_add_to_those_of_the_pooled_rows(made, width, seed, dtype):
    M, parts = made
    width = min(width, M)
    omega = blind_omega(M, width, seed)
    total = sum(sketch_sums(H.astype(dtype), y, CLASSES, omega) for H, y in parts)
    H, y = pooled(parts)
    room = {"rtol": 0, "atol": (1e-5 if dtype == "float32" else 1e-12) * (1 + (H**2).sum())}
    np.testing.assert_allclose(total.sketch, H.T @ H @ omega.astype(np.float64), **room)
    np.testing.assert_allclose(total.sums.sums, H.T @ onehot(y, CLASSES), **room)
    np.testing.assert_allclose(total.energy, (H**2).sum(), **room)
    assert total.sums.counts == tuple(y.count(c) for c in CLASSES)
    packed = sum(sketch_sums(H.astype(dtype), y, CLASSES) for H, y in parts)
    np.testing.assert_allclose(packed.sketch, (H.T @ H)[np.triu_indices(M)], **room)


@quick
@given(sites(), st.sampled_from([None, 1, 3]))
def test_a_vector_holds_everything(made, width):
    M, parts = made
    omega = None if width is None else blind_omega(M, min(width, M), 0)
    total = sum(sketch_sums(H, y, CLASSES, omega) for H, y in parts)
    vector = total.vector()
    assert vector.shape == (sum(section_sizes(3, M, total.width)),)
    again = SketchSums.from_vector(vector, CLASSES, M, total.width)
    assert np.array_equal(again.vector(), vector)
    assert (again.classes, again.sums.counts) == (total.classes, total.sums.counts)
    assert (again.out_features, again.width) == (M, total.width)


def test_the_same_seed_gives_the_same_omega_and_another_task_another_one():
    first = blind_omega(30, 4, (7, 0))
    assert np.array_equal(first, blind_omega(30, 4, (7, 0)))
    assert not np.array_equal(first, blind_omega(30, 4, (7, 1)))


def test_rows_without_a_label_do_not_count():
    H = features(np.random.default_rng(0), 4, 5)
    hidden = sketch_sums(H, ["ant", None, "bee", None], CLASSES)
    assert np.array_equal(hidden.vector(), sketch_sums(H[[0, 2]], ["ant", "bee"], CLASSES).vector())


def test_wrong_arguments_are_named():
    H = np.ones((2, 5))
    with pytest.raises(ValueError, match="label 'dog' is not in the class list"):
        sketch_sums(H, ["ant", "dog"], CLASSES)
    with pytest.raises(ValueError, match=r"omega must have shape \(5, s\)"):
        sketch_sums(H, ["ant", "ant"], CLASSES, blind_omega(4, 2, 0))
    with pytest.raises(ValueError, match="NaN"):
        sketch_sums(H * np.nan, ["ant", "ant"], CLASSES)
    with pytest.raises(ValueError, match="at most"):
        blind_omega(5, 6, 0)


def test_totals_of_different_shapes_do_not_add():
    H, y = np.ones((2, 5)), ["ant", "ant"]
    first = sketch_sums(H, y, CLASSES, blind_omega(5, 2, 0))
    for other, name in (
        (sketch_sums(H, y, CLASSES[:2], blind_omega(5, 2, 0)), "classes"),
        (sketch_sums(H[:, :4], y, CLASSES, blind_omega(4, 2, 0)), "out_features"),
        (sketch_sums(H, y, CLASSES, blind_omega(5, 3, 0)), "width"),
        (sketch_sums(H, y, CLASSES), "width"),
    ):
        with pytest.raises(Refused, match=f"sketch_sums.{name}: expected"):
            first + other
    with pytest.raises(TypeError):
        first + 1
