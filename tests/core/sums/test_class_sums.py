"""Labelled sums against a dict from label to rows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedran.core.errors import Refused
from fedran.core.labels import sort_key
from fedran.core.sums import class_sums as module
from fedran.core.sums.class_sums import ClassSums, sum_by_code
from helpers.core.reference import quick

LABELS = [0, 1, 10, 2, "1", "a", "b", None]
parts = st.lists(st.lists(st.sampled_from(LABELS), max_size=9), min_size=1, max_size=5)


def rows_of(y, seed, M=3):
    return np.random.default_rng(seed).standard_normal((len(y), M))


@quick
@given(parts, st.randoms(), st.sampled_from([np.asarray, torch.as_tensor]))
def test_sums_equal_a_dict_of_rows_in_any_order(labels, random, kind):
    reference = {}
    sums = []
    for k, y in enumerate(labels):
        H = rows_of(y, k)
        sums.append(ClassSums.from_rows(kind(H), y))
        for row, c in zip(H, y, strict=True):
            if c is not None:
                reference.setdefault(c, []).append(row)
    random.shuffle(sums)
    total = sum(sums)
    assert total.classes == tuple(sorted(reference, key=sort_key))
    assert total.counts == tuple(len(reference[c]) for c in total.classes)
    assert len(total) == len(reference)
    assert type(total.sums) is type(kind(np.zeros(1)))
    assert total.sums.shape == (3, len(reference))
    for c, rows in reference.items():
        assert c in total
        assert total.count(c) == len(rows)
        np.testing.assert_allclose(total[c], np.sum(rows, axis=0), atol=1e-12)
        np.testing.assert_allclose(
            total.means[:, total.classes.index(c)], np.mean(rows, axis=0), atol=1e-12
        )


@quick
@given(parts)
def test_addition_is_associative_and_empty_is_neutral(labels):
    a, b, c = ([ClassSums.from_rows(rows_of(y, k), y) for k, y in enumerate(labels)] * 3)[:3]
    pairs = [((a + b) + c, a + (b + c)), (a + b, b + a), (a + ClassSums.empty(3), a)]
    for one, other in [*pairs, (ClassSums.empty(3) + a, a)]:
        assert (one.classes, one.counts) == (other.classes, other.counts)
        np.testing.assert_allclose(one.sums, other.sums, atol=1e-12)


def test_the_result_lies_where_the_first_part_lies():
    a, b = ClassSums.from_rows(np.eye(2), [0, 1]), ClassSums.from_rows(torch.eye(2), [1, 2])
    assert isinstance((a + b).sums, np.ndarray)
    assert isinstance((b + a).sums, torch.Tensor)
    assert isinstance(a.to("cpu").sums, torch.Tensor)
    assert isinstance(b.to(None).sums, np.ndarray)
    assert isinstance(ClassSums.empty(2, "cpu").sums, torch.Tensor)


def test_the_sums_do_not_depend_on_the_block(monkeypatch):
    H = rows_of(range(50), 0, M=4)
    codes = np.random.default_rng(1).integers(-1, 3, 50)
    whole = sum_by_code(H, codes, 3)
    np.testing.assert_allclose(sum_by_code(H, codes, 3, block=11), whole)
    monkeypatch.setattr(module, "SUM_BLOCK", 7)
    np.testing.assert_allclose(sum_by_code(H, codes, 3), whole)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("class_sums", ((0, 1), np.zeros((3, 1)), (1, 1))),
        ("class_sums", ((0,), np.zeros(3), (1,))),
        ("counts", ((0, 1), np.zeros((3, 2)), (1,))),
        ("classes", ((1, 0), np.zeros((3, 2)), (1, 1))),
        ("classes", (("a", 0), np.zeros((3, 2)), (1, 1))),
        ("classes", ((0, 0), np.zeros((3, 2)), (1, 1))),
    ],
)
def test_shapes_and_order_are_checked(field, arguments):
    with pytest.raises(Refused, match=f"^{field}"):
        ClassSums(*arguments)


def test_only_sums_of_the_same_width_add():
    with pytest.raises(Refused, match="sums of 2 features, got 3"):
        ClassSums.empty(2) + ClassSums.empty(3)
    with pytest.raises(TypeError):
        ClassSums.empty(2) + 1
