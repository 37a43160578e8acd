"""Heads forged by someone who knows the format, with a valid checksum, are refused."""

import numpy as np
import pytest

import fedran
from helpers.wire.messages import (
    INF,
    NAN,
    NOT_NUMBERS,
    assert_refused,
    drop_field,
    kernel_head,
    put,
    put_stream,
    set_field,
    solved_head,
    tampered,
)

HEAD = fedran.encode(solved_head())
KERNEL_HEAD = fedran.encode(kernel_head())
DIAGNOSIS = [
    f"diagnosis.{n}"
    for n in fedran.Diagnosis.__dataclass_fields__
    if n not in ("route", "agreement", "largest_group")
]


@pytest.mark.parametrize("path", DIAGNOSIS)
def test_numbers_of_the_diagnosis_must_be_finite_numbers_from_zero(path):
    for value in (NAN, -1.0, 10**30, *NOT_NUMBERS):
        named = path if value == value else "header"
        assert_refused(tampered(HEAD, set_field(path, value)), named, kind=fedran.Head)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("diagnosis.route", "x" * 1001),
        ("diagnosis.route", None),
        ("diagnosis", 3),
        ("out_features", 17),
        ("out_features", True),
        ("classes", []),
        ("classes", [2, "bee", "ant"]),
        ("fingerprint", {"a": []}),
        ("kind", "summary"),
    ],
)
def test_a_forged_header_field_of_a_head_is_refused(path, value):
    named = {"out_features": "", "fingerprint": "fingerprint.a"}.get(path, path)
    assert_refused(tampered(HEAD, set_field(path, value)), named, kind=fedran.Head)


@pytest.mark.parametrize("path", ["diagnosis", "diagnosis.lam", "classes", "fingerprint"])
def test_a_missing_field_of_a_head_is_refused(path):
    assert_refused(tampered(HEAD, drop_field(path)), path, kind=fedran.Head)


@pytest.mark.parametrize(
    "change",
    [
        put("weights_scale", [0.0, 1.0, 1.0]),
        put("weights_scale", [-1.0, 1.0, 1.0]),
        put("weights_scale", [NAN, 1.0, 1.0]),
        put("weights_scale", [INF, 1.0, 1.0]),
        put("weights_scale", [1e308, 1.0, 1.0]),
        put("weights_scale", [1e40, 1.0, 1.0]),
        put("weights_scale", [1e36, 1.0, 1.0]),
        put("weights_scale", [1.0]),
        put("weights", np.full((3, 16), NAN)),
        put("weights", np.full((3, 16), INF)),
        put("weights", np.zeros((16, 3))),
        put("weights", np.zeros((3, 16)), "F32"),
        put("weights_extra", [1.0], "F32"),
        lambda m: m.tensors.pop("weights"),
    ],
)
def test_forged_weights_are_refused(change):
    assert_refused(tampered(HEAD, change), "weights", kind=fedran.Head)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (set_field("landmarks", 7), "weights"),
        (set_field("landmarks", 0), "weights"),
        (set_field("landmarks", 10**9), "landmarks"),
        (set_field("landmarks", -1), "landmarks"),
        (set_field("scale", 0.0), "scale"),
        (set_field("scale", 1e9), "scale"),
        (set_field("scale", NAN), "header"),
        (set_field("out_features", 15), "columns"),
        (set_field("diagnosis.agreement", 1.5), "diagnosis.agreement"),
        (set_field("diagnosis.agreement", "high"), "diagnosis.agreement"),
        (set_field("diagnosis.largest_group", -1), "diagnosis.largest_group"),
        (put("weights", np.zeros((3, 8)), "F16"), "weights"),
        (put_stream("columns", b""), "columns"),
        (put_stream("tables", b"x"), "tables"),
        (put("codes", np.zeros(9, np.uint8)), "codes"),
        (lambda m: m.tensors.pop("codes"), "codes"),
        (put("rows", np.zeros(9, np.uint8), "U8"), "rows"),
    ],
)
def test_a_forged_kernel_head_is_refused(change, named):
    assert_refused(tampered(KERNEL_HEAD, change), named, kind=fedran.Head)


def test_landmarks_have_limits():
    m = len(fedran.decode(KERNEL_HEAD, fedran.Head).landmarks)
    fedran.decode(KERNEL_HEAD, fedran.Head, limits=fedran.Limits(points=m))
    assert_refused(KERNEL_HEAD, "landmarks", fedran.Limits(points=m - 1), fedran.Head)
    assert_refused(KERNEL_HEAD, "message", fedran.Limits(decoded=1000), fedran.Head)


def test_a_head_has_limits_and_is_no_summary():
    assert_refused(HEAD, "message", fedran.Limits(decoded=100), fedran.Head)
    assert_refused(HEAD, "kind: expected summary, got head")
