"""The meter finds planted leaks, and finds nothing where there is nothing to find."""

from dataclasses import replace

import numpy as np
import pytest

import fedran
from fedran.leakage import Tolerance, measure
from fedran.leakage.attacks import GAP, HEADS, MEAN, NEAREST, SPAN
from fedran.leakage.membership import SURE
from fedran.leakage.meter import SINGLE, SMALL
from helpers.leaky_sites import head, points, summary, world


def leak_of(message, w, **options):
    return measure(message, w.Z, w.y, w.other, w.other_y, **options)


@pytest.mark.parametrize("center", ["class", None])
@pytest.mark.parametrize("precision", ["float64", None])
def test_a_full_factor_tells_every_member(center, precision):
    w = world()
    message = fedran.decode(fedran.encode(summary(w, center=center), precision))
    found = leak_of(message, w)
    assert found[SPAN].value > 0.99
    assert found.auc > 0.99
    assert SPAN in {n.attack for n in found.over()}


def test_class_means_of_few_rows_tell_their_members():
    w = world((3, 4, 5), others=200, d=48, M=256)
    found = leak_of(summary(w, rank=1), w)
    assert found[MEAN].value > 0.85


@pytest.mark.parametrize("kind", ["cosine", "hellinger"])
def test_points_of_one_row_are_the_row(kind):
    w = world(kind=kind)
    found = leak_of(fedran.decode(fedran.encode(points(w), step=0.2)), w)
    assert found[SINGLE].value == found[SINGLE].tries == 40
    assert found[NEAREST].value > 0.99
    assert {SINGLE, NEAREST, GAP} <= {n.attack for n in found.over()}


def test_larger_groups_tell_less():
    w = world((40, 40, 40), others=200)
    found = [leak_of(points(w, *groups), w) for groups in ((1, 1), (2, 1), (5, 1), (20, 10))]
    assert found[1][SINGLE].value == found[1][SINGLE].tries > 0
    assert found[3][SINGLE].tries == 0
    aucs = [f.auc for f in found]
    assert aucs == sorted(aucs, reverse=True)
    assert aucs[0] > 0.99
    assert aucs[3] < 0.85


def test_small_classes_of_points_are_told():
    w = world((1, 3, 30))
    found = leak_of(points(w), w)
    assert found[SMALL].value > 0.999
    assert SMALL not in {n.attack for n in leak_of(points(w, 1, 5), w).numbers}


def test_a_head_with_all_rows_as_landmarks_tells_them():
    w = world((40, 40, 40), others=200)
    found = leak_of(head(points(w), ridge=0.01), w)  # a larger ridge tells less
    assert found[SINGLE].value > 0.9 * found[SINGLE].tries == 0.9 * 120
    assert found[NEAREST].value > 0.99
    assert found[HEADS].value > 0.5 + 2 * found[HEADS].error
    assert not found.cosines
    few = leak_of(head(points(w), landmarks=9), w)
    assert few[SINGLE].value == 0 < few[SINGLE].tries <= 9
    assert few.auc < found.auc


def test_a_head_tells_a_site_s_rows_among_those_of_others():
    mine, theirs = world((40, 40, 40), others=200), world((40, 40, 40), others=1, seed=0)
    rows = np.arange(0, 600, 3)
    theirs = theirs._replace(Z=mine.other[rows], y=mine.other_y[rows])
    served = head(points(mine), points(theirs, 5, 5))
    rest = np.setdiff1d(np.arange(600), rows)
    given = mine.other[rest], mine.other_y[rest]
    member = measure(served, mine.Z, mine.y, *given)
    grouped = measure(served, theirs.Z, theirs.y, *given)
    assert member[NEAREST].value > grouped[NEAREST].value > 0.5
    assert member[SINGLE].value > 100 > grouped[SINGLE].value


def test_a_head_over_random_features_is_tested_by_its_scores():
    w = world((30, 30, 30), others=200, d=48, M=512)
    found = leak_of(head(summary(w)), w)
    assert [n.attack for n in found.numbers] == [SINGLE, HEADS]
    assert found[SINGLE].tries == 0
    assert found[HEADS].value > 0.6


def test_more_columns_tell_more():
    w = world((40, 40, 40), others=200, M=256)
    aucs = [leak_of(summary(w, rank=r), w).auc for r in (2, 20, None)]
    assert aucs[0] < aucs[1] < aucs[2]


@pytest.mark.parametrize("kind", ["summary", "paper", "points", "head"])
@pytest.mark.parametrize("seed", range(2))
def test_rows_that_are_not_in_the_message_look_like_other_rows(kind, seed):
    counts = (60, 25, 35)
    w = world(counts, others=150, seed=seed)
    inside = np.concatenate([np.flatnonzero(w.other_y == c)[:n] for c, n in enumerate(counts)])
    hidden = w._replace(Z=w.other[inside])
    if kind in ("points", "head"):
        message = points(hidden, 4, 2)
        message = head(message) if kind == "head" else message
    else:
        message = summary(hidden, 30, None if kind == "paper" else "class")
    rest = np.setdiff1d(np.arange(len(w.other)), inside)
    found = measure(message, w.Z, w.y, w.other[rest], w.other_y[rest], partial=True)
    for number in found.numbers:
        if number.measure == "auc":
            assert abs(number.value - 0.5) < 4 * number.error, number
    # The same message and reference, with the rows that it does describe:
    leaky = measure(message, hidden.Z, hidden.y, w.other[rest], w.other_y[rest])
    assert leaky.auc > 0.7


def test_a_class_with_one_row_is_recovered_and_told():
    w = world((1, 20, 20))
    found = leak_of(fedran.decode(fedran.encode(summary(w, 10))), w)
    assert (found[SINGLE].value, found[SINGLE].tries) == (1, 1)
    assert found.cosines[0] == found[SMALL].value > 0.99
    assert SINGLE in {n.attack for n in found.over()}
    assert not found.over(Tolerance(rows=1000, cosine=1.0, auc=1.0, tpr=1.0))


def test_rates_are_stated_only_with_enough_reference_rows(monkeypatch):
    w = world()
    assert "tpr" not in {n.measure for n in leak_of(summary(w), w).numbers}
    monkeypatch.setattr("fedran.leakage.membership.LEAST_FOR_TPR", 239)
    assert leak_of(summary(w), w)[SURE].value > 0.9
    monkeypatch.setattr("fedran.leakage.membership.LEAST_FOR_TPR", 240)
    assert "tpr" not in {n.measure for n in leak_of(summary(w), w).numbers}


def test_members_in_the_reference_are_left_out():
    w = world()
    mixed = np.concatenate([w.Z, w.other]), np.concatenate([w.y, w.other_y])
    assert measure(summary(w, 5), w.Z, w.y, *mixed) == leak_of(summary(w, 5), w)


def test_labels_are_names_and_unknown_or_missing_ones_are_left_out():
    w = world()
    names = np.array(["b", "a", "c"], dtype=object)
    y, other_y = names[w.y], names[w.other_y]
    H = w.phi(w.Z)
    s = fedran.summarize(H, y, 5, fingerprint=w.phi.fingerprint)
    plain = measure(s, w.Z, y, w.other, other_y)
    assert list(plain.cosines) == ["a", "b", "c"]
    more = np.concatenate([w.Z, w.Z[:3]]), np.concatenate([y, [None, "other", None]])
    others = np.concatenate([w.other, w.Z[:2]]), np.concatenate([other_y, ["other", None]])
    assert measure(s, *more, *others) == plain


def test_rows_of_another_message_are_refused():
    w = world()
    s = summary(w, 5)
    with pytest.raises(fedran.Refused, match=r"expected 12 rows of class 0.*pseudo-label"):
        measure(s, w.Z[1:], w.y[1:], w.other, w.other_y)
    with pytest.raises(fedran.Refused, match="the rows that the message was made of"):
        measure(s, w.Z[::-1], w.y, w.other, w.other_y)
    with pytest.raises(fedran.Refused, match="the rows that the message was made of"):
        measure(points(w), w.Z[::-1], w.y, w.other, w.other_y)
    twice = np.concatenate([w.Z, w.Z]), np.concatenate([w.y, w.y])
    with pytest.raises(fedran.Refused, match="at most 12 rows of class 0"):
        measure(s, *twice, w.other, w.other_y, partial=True)


def test_too_few_reference_rows_are_refused():
    w = world()
    with pytest.raises(fedran.Refused, match="at least 8 rows of a class"):
        measure(summary(w), w.Z, w.y, w.other[:7], w.other_y[:7])
    with pytest.raises(fedran.Refused, match="got at most 0; rows of the reference that are in Z"):
        measure(summary(w), w.Z, w.y, w.Z, w.y)


def test_a_message_without_a_fingerprint_needs_the_feature_map():
    w = world()
    s = replace(summary(w), fingerprint=None)
    with pytest.raises(ValueError, match="pass phi="):
        leak_of(s, w)
    assert leak_of(s, w, phi=w.phi) == leak_of(summary(w), w)


def test_summaries_of_features_without_a_projection_are_attacked_too():
    w = world((1, 20, 20), d=24)
    phi = fedran.RandomFeatures(24, 24, projected=False)
    s = fedran.summarize(phi(w.Z), w.y, 6, fingerprint=phi.fingerprint)
    found = leak_of(s, w)
    assert (found[SINGLE].value, found[SINGLE].tries) == (1, 1)
    assert min(found.cosines.values()) > 0.999
    assert found.auc > 0.7
