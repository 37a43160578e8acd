"""Points: group means of prepared rows, and groups that depend on the rows alone."""

import os
import subprocess
import sys

import numpy as np
import pytest

import fedran
from fedran.core.points import Points, condense, join
from fedran.core.prepare import KernelFeatures


def unit_rows(n, d, seed):
    X = np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.mark.parametrize("seed", range(6))
def test_means_counts_and_labels_are_those_of_groups_of_one_class(seed):
    rng = np.random.default_rng(seed)
    n, size, least = int(rng.integers(1, 90)), int(rng.integers(1, 7)), int(rng.integers(1, 4))
    X, y = unit_rows(n, int(rng.integers(1, 30)), seed), rng.choice(["a", "b", 3], n).tolist()
    points = condense(X, y, group_size=size, min_group=least)
    assert points.smallest_group >= least or not points.classes
    assert {**points.rows_per_class(), **points.withheld} == {c: y.count(c) for c in set(y)}
    for c, label in enumerate(points.classes):
        rows = X[[v == label for v in y]].astype(np.float64)
        of_class = points.codes == c
        total = points.means[of_class] * points.counts[of_class, None]
        np.testing.assert_allclose(total.sum(axis=0), rows.sum(axis=0), atol=1e-4)
    points.validate(min_group=least)


def test_groups_of_one_row_are_the_rows():
    X = unit_rows(20, 5, 0)
    points = condense(X, [0] * 20)
    np.testing.assert_array_equal(points.means, X)
    assert points.counts.tolist() == [1] * 20


@pytest.mark.parametrize("least", [2, 7])
def test_a_least_group_holds_even_where_groups_of_one_row_are_asked_for(least):
    points = condense(unit_rows(30, 5, least), [0] * 25 + [1] * 5, min_group=least)
    assert points.smallest_group >= least
    assert points.n_rows == (30 if least == 2 else 25)


def test_groups_have_less_spread_than_random_ones():
    X = unit_rows(300, 4, 1)
    points = condense(X, [0] * 300, group_size=5)
    kept = points.counts @ np.sum(points.means.astype(np.float64) ** 2, axis=1) / 300
    by_chance = np.mean([np.sum(X[i : i + 5].mean(axis=0) ** 2) for i in range(0, 300, 5)])
    assert kept > 0.8 > 0.5 > by_chance


def test_points_of_several_sites_add_up():
    a = condense(unit_rows(10, 3, 0), ["x"] * 5 + ["y"] * 5)
    b = condense(unit_rows(8, 3, 1), ["w"] * 4 + ["y"] * 4, group_size=2)
    both = a + b
    assert both.classes == ("w", "x", "y")
    assert both.rows_per_class() == {"w": 4, "x": 5, "y": 9}
    assert both.content_digest() == join([a, b]).content_digest() == sum([a, b]).content_digest()


def test_points_of_other_features_do_not_add_up():
    phi, other = (KernelFeatures(3, source=name) for name in ("one", "another"))
    a = condense(phi(unit_rows(4, 3, 0)), [0] * 4, fingerprint=phi.fingerprint)
    b = condense(other(unit_rows(4, 3, 0)), [0] * 4, fingerprint=other.fingerprint)
    with pytest.raises(fedran.Refused, match="another"):
        a + b


def test_rows_that_are_not_prepared_are_refused():
    with pytest.raises(ValueError, match="phi"):
        condense(np.full((2, 3), 5.0), [0, 1])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"counts": np.array([0, 1])}, "counts"),
        ({"means": np.full((2, 3), 2.0, np.float32)}, "means"),
    ],
)
def test_points_that_no_rows_have_are_refused(changes, field):
    given = {"codes": np.array([0, 0]), "means": unit_rows(2, 3, 0), "counts": np.array([1, 1])}
    with pytest.raises(fedran.Refused) as refused:
        Points(("a",), **{**given, **changes}).validate()
    assert refused.value.field == field


PROGRAM = """
import hashlib, numpy as np
from fedran.core.points import condense
X = np.random.default_rng(0).random((600, 130)).astype(np.float32)
X /= np.linalg.norm(X, axis=1, keepdims=True)
print(condense(X, np.arange(600) % 3, group_size=4, min_group=2).content_digest())
"""


def test_groups_do_not_depend_on_threads_or_on_the_kernels_of_the_library():
    digests = set()
    for threads, kernels in (("1", "Haswell"), ("2", "Haswell"), ("2", "Nehalem")):
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_CORETYPE": kernels}
        command = [sys.executable, "-c", PROGRAM]
        digests.add(subprocess.check_output(command, env=environment, text=True))
    assert len(digests) == 1
