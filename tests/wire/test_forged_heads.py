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
    put,
    set_field,
    solved_head,
    tampered,
)

HEAD = fedran.encode(solved_head())
DIAGNOSIS = [f"diagnosis.{n}" for n in fedran.Diagnosis.__dataclass_fields__ if n != "route"]


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
        ("precision", "int8"),
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


def test_a_head_has_limits_and_is_no_summary():
    assert_refused(HEAD, "message", fedran.Limits(decoded=100), fedran.Head)
    assert_refused(HEAD, "kind: expected summary, got head")
