"""Summaries forged by someone who knows the format, with a valid checksum, are refused."""

import json

import numpy as np
import pytest

import fedran
from helpers.wire.messages import (
    CENTERS,
    INF,
    NAN,
    NOT_NUMBERS,
    PRECISIONS,
    Message,
    assert_refused,
    drop_field,
    encoded,
    put,
    put_stream,
    set_field,
    tampered,
)

ACCOUNTS = [
    f"accounts.{name}"
    for name in fedran.Accounts.__dataclass_fields__
    if name != "weight_excess"  # of no message
]
REQUIRED = ["version", "format", "kind", "precision", "out_features", "rank", "classes", "counts"]
NULLABLE = ["center", "fingerprint"]


@pytest.mark.parametrize("path", ACCOUNTS)
def test_accounts_must_be_finite_numbers_from_zero(path):
    for value in (-1.0, -(10**30), 10**30, *NOT_NUMBERS):
        assert_refused(tampered(encoded(), set_field(path, value)), path)
    for value in (NAN, INF, -INF):  # refused by the JSON parser, which does not know the field
        assert_refused(tampered(encoded(), set_field(path, value)), "header")


@pytest.mark.parametrize("path", ACCOUNTS)
def test_accounts_that_overflow_to_infinity_are_refused(path):
    message = Message.of(encoded())
    set_field(path, "BIG")(message)
    message.text = json.dumps(message.fields).replace('"BIG"', "1e999")
    assert_refused(message.bytes(), path)


@pytest.mark.parametrize("path", [*ACCOUNTS, *REQUIRED, "accounts", *NULLABLE])
def test_a_missing_field_is_refused(path):
    assert_refused(tampered(encoded(), drop_field(path)), path)


COUNTED = ["accounts.n_rows", "accounts.merges"]


@pytest.mark.parametrize("path", ["out_features", "rank", *COUNTED])
def test_integers_must_be_integers(path):
    for value in (1.0, 2**63, -1, *NOT_NUMBERS):
        assert_refused(tampered(encoded(), set_field(path, value)), path)


FIELDS = {
    "sections are objects": ("accounts", [], "accounts"),
    "unknown account": ("accounts.karma", 1.0, "karma"),
    "weighted rows": ("accounts.weight_excess", 1.0, "weight_excess"),
    "M of 2**31": ("out_features", 2**31, "out_features"),
    "M of 0": ("out_features", 0, "out_features"),
    "M beyond the tensors": ("out_features", 17, "directions"),
    "M beyond memory": ("out_features", 4096, "directions"),
    "rank beyond M": ("rank", 17, "rank"),
    "rank beyond the tensors": ("rank", 4, "sigma"),
    "rank below the tensors": ("rank", 2, "sigma"),
    "count of 0": ("counts", [0, 4, 4], "counts"),
    "negative count": ("counts", [-1, 4, 4], "counts"),
    "counts beyond the rows": ("counts", [4, 4, 5], "counts"),
    "boolean count": ("counts", [True, 4, 4], "counts"),
    "float count": ("counts", [4.0, 4, 4], "counts"),
    "too few counts": ("counts", [4, 4], "counts"),
    "too many counts": ("counts", [4, 4, 1, 1], "counts"),
    "huge count": ("counts", [10**30, 4, 4], "counts"),
    "counts no list": ("counts", {"a": 1}, "counts"),
    "unsorted labels": ("classes", [2, "bee", "ant"], "classes"),
    "strs before ints": ("classes", ["ant", "bee", 2], "classes"),
    "duplicate labels": ("classes", [2, "ant", "ant"], "classes"),
    "long label": ("classes", [2, "ant", "b" * 21], "classes"),
    "lone surrogate": ("classes", [2, "ant", "\ud800"], "classes"),
    "boolean label": ("classes", [True, "ant", "bee"], "classes"),
    "float label": ("classes", [2.0, "ant", "bee"], "classes"),
    "null label": ("classes", [None, "ant", "bee"], "classes"),
    "nested label": ("classes", [[2], "ant", "bee"], "classes"),
    "huge label": ("classes", [10**30, "ant", "bee"], "classes"),
    "too many labels": ("classes", list(range(51)), "classes"),
    "classes as text": ("classes", "abc", "classes"),
    "escape codes in a label": ("classes", [2, "b\x1b[2J\n", "a"], "classes"),
    "other precision": ("precision", "int4", "precision"),
    "precision of another layout": ("precision", "float32", "directions"),
    "precision no text": ("precision", 32, "precision"),
    "center of the task": ("center", "task", "center"),
    "center no text": ("center", True, "center"),
    "energy a little too small": ("accounts.energy", 86.0, "accounts.energy"),
    "energy a little too large": ("accounts.energy", 87.0, "accounts.energy"),
    "energy of 0": ("accounts.energy", 0.0, "energy 0 "),
    "energy too large": ("accounts.energy", 1e9, "accounts.energy"),
    "energy beyond squares": ("accounts.energy", 1e300, "accounts.energy"),
    "cut that does not fit": ("accounts.cut", 1e9, "accounts.energy"),
    "older major": ("version", "1.0", "version"),
    "newer major": ("version", "4.0", "version"),
    "version garbage": ("version", "one", "version"),
    "version without minor": ("version", "1", "version"),
    "version of other digits": ("version", "1.²", "version"),
    "version number": ("version", 1.0, "version"),
    "long version": ("version", "2." + "0" * 20, "version"),
    "negative version": ("version", "-1.0", "version"),
    "other format": ("format", "pickle", "format"),
    "head as summary": ("kind", "head", "kind"),
    "aggregator as summary": ("kind", "aggregator", "kind: expected summary, got aggregator"),
    "unknown kind": ("kind", "\x1b[31mvirus\n", "kind"),
    "kind no text": ("kind", ["summary"], "kind"),
    "fingerprint no object": ("fingerprint", "abc", "fingerprint"),
    "fingerprint empty": ("fingerprint", {}, "fingerprint"),
    "fingerprint nested": ("fingerprint.seed", {"a": 1}, "fingerprint.seed"),
    "fingerprint name": ("fingerprint", {"a\nb": 1}, "fingerprint"),
    "fingerprint long text": ("fingerprint.seed", "a" * 257, "fingerprint.seed"),
    "fingerprint crowded": ("fingerprint", {f"f{i}": i for i in range(33)}, "fingerprint"),
    "fingerprint of others": ("fingerprint.seed", 1, "seed is 0 here and 1 there"),
    "fingerprint of other type": ("fingerprint.seed", 0.0, "seed is 0 here and 0.0 there"),
    "fingerprint of false": ("fingerprint.seed", False, "seed is 0 here and false there"),
    "no fingerprint": ("fingerprint", None, "fingerprint"),
}


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("case", FIELDS)
def test_a_forged_header_field_is_refused(case, center):
    path, value, named = FIELDS[case]
    assert_refused(tampered(encoded(center=center), set_field(path, value)), named)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("center", CENTERS)
def test_a_message_that_states_the_other_center_is_refused(center, precision):
    other = None if center else "class"
    blob = tampered(encoded(precision, center), set_field("center", other))
    assert_refused(blob, "accounts.energy")


SIGMAS = [
    [1.0, 2.0, 3.0],
    [3.0, 2.0, -1.0],
    [3.0, 2.0, 0.0],
    [NAN, 2.0, 1.0],
    [INF, 2.0, 1.0],
    [1e300, 2.0, 1.0],
    [1e20, 2.0, 1.0],
    [3.0, 2.0, 5e-324],
]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_singular_values_must_be_finite_positive_descending_and_in_range(precision):
    for sigma in SIGMAS:
        fits = sigma[-1] == 5e-324 or (sigma[0] == 1e20 and precision == "float64")
        named = "accounts.energy" if fits else "sigma"
        assert_refused(tampered(encoded(precision), put("sigma", sigma)), named)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda rows: rows * 0,
        lambda rows: rows * [[1], [1], [0]],
        lambda rows: np.ones_like(rows),
        lambda rows: np.repeat(rows[:1], 3, axis=0),
    ],
    ids=["zero", "one zero row", "all equal", "one row thrice"],
)
def test_directions_must_be_orthogonal(precision, damage):
    rows = Message.of(encoded(precision)).array("directions")
    assert_refused(tampered(encoded(precision), put("directions", damage(rows))), "directions")


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("value", [NAN, INF, -INF, "max", "tiny"])
def test_directions_must_be_finite(precision, value):
    rows = Message.of(encoded(precision)).array("directions").copy()
    limits = np.finfo(rows.dtype)
    rows[1] = {"max": limits.max, "tiny": limits.smallest_subnormal}.get(value, value)
    assert_refused(tampered(encoded(precision), put("directions", rows)), "directions")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_extra_missing_and_retyped_tensors_are_refused(precision):
    blob = encoded(precision)
    assert_refused(tampered(blob, put("extra", [1.0], "F32")), "extra")
    assert_refused(tampered(blob, put("a\x1b[31m\n", [1.0], "F32")), "tensors")
    assert_refused(tampered(blob, lambda m: m.tensors.pop("sigma")), "sigma")
    assert_refused(tampered(blob, put("sigma", [3.0, 2.0, 1.0], "F32")), "sigma")
    for dtype in ("I64", "BF16"):
        size = 8 if dtype == "I64" else 2
        foreign = (dtype, [3], bytes(3 * size))
        assert_refused(tampered(blob, lambda m, t=foreign: m.tensors.update(sigma=t)), "sigma")


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("rows", [0, 2])
def test_more_directions_than_rows_are_refused(rows, center):
    def lie(message):
        message.fields.update(classes=[], counts=[])
        message.fields["accounts"]["n_rows"] = rows
        message.put("sums_norm", [])
        message.put("sums_bits", [])
        put_stream("sums", b"")(message)

    assert_refused(tampered(encoded(center=center), lie), "n_rows")


def test_more_directions_than_rows_minus_classes_are_refused():
    """Rows minus the means of their classes span fewer directions than there are rows."""

    def lie(message):
        message.fields["accounts"]["n_rows"] = 5
        message.fields["counts"] = [1, 1, 3]

    assert_refused(tampered(encoded(), lie), "n_rows - classes")


@pytest.mark.parametrize("center", CENTERS)
def test_a_rank_of_zero_with_energy_is_refused(center):
    def empty(message):
        message.fields["rank"] = 0
        message.put("sigma", [])
        message.put("directions_bits", [])
        put_stream("directions", b"")(message)

    assert_refused(tampered(encoded(center=center), empty), "accounts.energy")
