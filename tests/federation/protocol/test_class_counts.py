"""Validation counts of sites: exact on one site, and bounded in the sum over sites."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedran.core.errors import Refused
from fedran.federation.protocol.class_counts import (
    Count,
    accuracy,
    add_bounded,
    add_calibrations,
    calibration_of,
    count_correct,
    counts_from_json,
    counts_to_json,
    gain,
    is_right,
)


@given(st.integers(0, 2**32 - 1))
def test_counts_agree_with_a_loop_over_the_rows(seed):
    rng = np.random.default_rng(seed)
    n, classes = int(rng.integers(0, 30)), ["a", "b", 1, "new"][: int(rng.integers(0, 5))]
    scores = rng.integers(0, 3, (n, len(classes))).astype(float)
    y = [[*classes, "other", None][i] for i in rng.integers(0, len(classes) + 2, n)]
    first = rng.random(n) < 0.5
    expected = {}
    for row, label, known in zip(scores, y, first, strict=True):
        if label is None:
            continue
        best = max(classes, key=lambda c: (row[classes.index(c)], -classes.index(c)), default=None)
        old = expected.get(label, (0, 0, 0))
        right = best == label
        expected[label] = old[0] + 1, old[1] + right, old[2] + (right and not known)
    found = count_correct(is_right(scores, classes, y), first, y)
    assert {c: (n.rows, n.correct, n.gained) for c, n in found.items()} == expected
    gained = sum((is_right(scores, classes, y) & ~first)[[label is not None for label in y]])
    before = count_correct(first, first, y)
    lost = sum(n.correct for n in before.values()) + gained
    lost -= sum(n.correct for n in found.values())
    assert gain(found, before) == (gained, lost)


numbers = st.integers(1, 10**6)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=9), numbers, numbers)
def test_a_site_has_at_most_its_share_of_a_class(others, claimed, allowed):
    """Whatever one site reports, the accuracy stays within its share of what it is without it."""
    reports, accepted = {}, {}
    for i, (rows, correct, sent) in enumerate(others):
        reports[f"site-{i}"] = {"a": Count(rows, min(correct, rows), 0)}
        accepted[f"site-{i}"] = {"a": sent}
    accepted["liar"] = {"a": allowed}
    share = 1 / ((len(others) + 1) // 2 + 1)
    found = []
    for correct in (0, claimed):
        told = {**reports, "liar": {"a": Count(claimed, correct, 0)}}
        total = add_bounded(told, accepted)
        found.append(accuracy(total, ["a"]))
        assert total["a"].rows <= sum(min(n, s) for n, _, s in others) + min(claimed, allowed)
    assert found[1] - found[0] <= share + 1e-9


def test_a_site_counts_for_no_more_rows_than_it_has_sent():
    reports = {"a": {1: Count(50, 50, 50), 2: Count(9, 9, 9)}}
    assert add_bounded(reports, {"a": {1: 5}}) == {1: Count(5.0, 5.0, 5.0)}
    assert add_bounded(reports, {}) == {}


def test_histograms_add_and_one_site_has_no_more_weight_than_the_median():
    rng, accepted = np.random.default_rng(0), {site: {0: 10**6} for site in "abc"}
    told = {
        site: calibration_of(rng.random((n, 3)), (0, 1, 2), rng.integers(0, 3, n).tolist())
        for site, n in (("a", 20), ("b", 30), ("c", 5000))
    }
    total = add_calibrations(told, accepted)
    assert total.total == pytest.approx(80)
    assert total.compared == pytest.approx(240)
    few = add_calibrations(told, {"a": {0: 4}, "b": {0: 3, 1: 3}})
    assert few.total == pytest.approx(8)
    assert add_calibrations(told, {}) is None


def test_counts_are_read_as_they_were_written():
    counts = {"a": Count(5, 4, 3), 7: Count(1, 1, 0)}
    assert counts_from_json(json.loads(json.dumps(counts_to_json(counts)))) == counts


@pytest.mark.parametrize(
    "given",
    [
        3,
        {},
        [3],
        [["a", 1, 1]],
        [["a", 1, 2, 0]],
        [["a", 1, 0, 2]],
        [["a", 0, 0, 0]],
        [["a", 2, -1, 0]],
        [["a", 10**12, 0, 0]],
        [["a", 1.0, 0, 0]],
        [["a", True, 0, 0]],
        [[["a"], 1, 0, 0]],
        [[None, 1, 0, 0]],
        [["a", 1, 0, 0]] * 2,
        [["a" * 300, 1, 0, 0]],
        [[i, 1, 0, 0] for i in range(2001)],
    ],
)
def test_anything_but_counts_is_refused(given):
    with pytest.raises(Refused):
        counts_from_json(given)
