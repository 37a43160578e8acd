import enum

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedran.core.labels import (
    MISSING,
    canonical,
    encode_labels,
    is_missing,
    label_array,
    ordered,
    similar_labels,
)
from helpers.core.reference import quick

labels = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
)


@pytest.mark.parametrize(
    ("given_label", "expected"),
    [
        (3, 3),
        (True, 1),
        (np.bool_(False), 0),
        (np.int8(-4), -4),
        (np.uint64(7), 7),
        (3.0, 3),
        (np.float32(-2.0), -2),
        (-0.0, 0),
        ("3", "3"),
        (np.str_("x"), "x"),
        ("", ""),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
    ],
)
def test_the_canonical_form(given_label, expected):
    result = canonical(given_label)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize("label", [0.5, np.float64(1.5), np.inf, np.nan, None, b"a", 1j, (1,), [1]])
def test_other_labels_are_refused_with_their_type(label):
    with pytest.raises(ValueError, match=r"integer or a string.*of type"):
        canonical(label)


@pytest.mark.parametrize("label", [2**63, -(2**63) - 1, 1e30, np.uint64(2**63)])
def test_integers_beyond_64_bits_are_refused(label):
    with pytest.raises(ValueError, match="64 bits"):
        canonical(label)


def test_text_that_is_not_utf8_is_refused():
    with pytest.raises(ValueError, match="UTF-8"):
        canonical("a" + chr(0xD800))


def test_a_text_label_equals_its_canonical_form():
    class Colour(str, enum.Enum):  # noqa: UP042
        RED = "red"

    assert canonical(Colour.RED) == "red"


@quick
@given(st.lists(labels))
def test_order_is_ints_then_strs_whatever_the_arrival(values):
    once = ordered(values)
    assert once == ordered(reversed(values)) == ordered(values + values)
    ints = [v for v in once if isinstance(v, int)]
    strs = [v for v in once if isinstance(v, str)]
    assert list(once) == sorted(ints) + sorted(strs)


@pytest.mark.parametrize("value", [None, np.nan, float("nan"), np.float32("nan")])
def test_none_and_nan_mean_no_label(value):
    assert is_missing(value)
    classes, codes = encode_labels(["a", value], 2)
    assert classes == ("a",)
    assert codes.tolist() == [0, MISSING]


@quick
@given(st.lists(st.one_of(st.none(), labels), max_size=20))
def test_codes_give_every_row_its_label_back(y):
    classes, codes = encode_labels(y, len(y))
    assert [None if c == MISSING else classes[c] for c in codes] == y
    assert classes == ordered(v for v in y if v is not None)


@quick
@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=20),
    st.sampled_from(["int8", "int64", "float16", "float32", "float64", "object"]),
)
def test_every_dtype_of_the_same_integers_means_the_same_labels(y, dtype):
    classes, codes = encode_labels(np.array(y, dtype=dtype), len(y))
    expected, expected_codes = encode_labels(y, len(y))
    assert classes == expected
    assert all(type(c) is int for c in classes)
    np.testing.assert_array_equal(codes, expected_codes)


def test_arrays_of_bools_strs_and_tensors_are_accepted_as_labels():
    assert encode_labels(np.array([True, False]), 2)[0] == (0, 1)
    assert encode_labels(np.array(["b", "a"]), 2)[0] == ("a", "b")
    assert encode_labels(torch.tensor([5, 3]), 2)[0] == (3, 5)
    assert encode_labels(range(3), 3)[0] == (0, 1, 2)
    assert encode_labels((), 0)[0] == ()
    assert encode_labels(np.array([]), 0)[0] == ()


@pytest.mark.parametrize("y", [np.array([0.5, 1]), np.array([b"a", b"b"]), np.array([1j, 2])])
def test_arrays_of_other_kinds_are_refused(y):
    with pytest.raises(ValueError, match="integer or a string"):
        encode_labels(y, 2)


@pytest.mark.parametrize("y", ["ab", None, 3, np.zeros((2, 1)), {"a": 1}])
def test_what_is_not_a_vector_is_refused(y):
    with pytest.raises(ValueError, match="one label per row"):
        encode_labels(y, 2)


def test_the_number_of_labels_must_be_the_number_of_rows():
    with pytest.raises(ValueError, match="3 rows, 2 labels"):
        encode_labels([0, 1], 3)


def test_label_arrays_have_the_plainest_dtype():
    assert label_array((1, 2)).dtype == np.int64
    assert label_array(("a", "b")).dtype.kind == "U"
    assert label_array((1, "a")).dtype == object
    assert label_array(()).shape == (0,)


def test_a_label_with_nul_is_refused_because_numpy_would_drop_it():
    with pytest.raises(ValueError, match="NUL"):
        canonical("a\0")


@pytest.mark.parametrize(
    ("labels", "pairs"),
    [
        ([1, "1"], ["1 and '1'"]),
        (["Cat", "cat", " CAT "], ["' CAT ' and 'Cat'", "' CAT ' and 'cat'"]),
        (["basal cell", "basal  cell"], ["'basal  cell' and 'basal cell'"]),
        ([1, "1.0", " -2", "-2.00"], ["' -2' and '-2.00'", "1 and '1.0'"]),
        (["cat", "cats", 1, -1, "1.5", "1.0.0", 10, "digit 1", "?", "<=50K", ">50K", "50K"], []),
    ],
)
def test_labels_that_differ_in_type_case_or_spaces_are_named_together(labels, pairs):
    found = similar_labels(labels)
    assert found.removesuffix(" may be meant as one class") == ", ".join(pairs)


def test_similar_labels_are_told_only_where_one_is_new_and_bounded():
    assert similar_labels([1, "1"], known=[1, "1"]) == ""
    assert "cat" not in similar_labels(["1", "cat"], known=[1, "cat"])
    many = similar_labels(map(str, range(100)), known=range(100))
    assert "95 more" in many
    assert "\x1b" not in similar_labels(["x\x1b[31m", "X\x1b[31m"])
