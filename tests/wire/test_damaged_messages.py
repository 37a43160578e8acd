"""Damaged and random bytes, and headers that are no header, are refused and nothing else."""

import json
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedran
from helpers.wire.messages import (
    CENTERS,
    PRECISIONS,
    SMALL,
    Message,
    assert_refused,
    encoded,
    fixture,
    framed,
    set_field,
    tampered,
)


@cache
def tiny() -> bytes:
    s = fedran.summarize(np.array([[1.0, 2.0], [2.0, 0.5], [2.0, 3.5]]), ["a", 3, "a"], rank=2)
    return fedran.encode(s)


def is_refused(blob: bytes) -> bool:
    try:
        fedran.decode(blob, limits=SMALL)
        text = ""
    except fedran.Refused as reason:
        text = str(reason)
    assert not text or text.isprintable()
    return bool(text)


def flipped(blob: bytes, bit: int) -> bytes:
    changed = bytearray(blob)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_message_built_by_hand_equals_the_encoder(precision, center):
    blob = encoded(precision, center)
    assert Message.of(blob).bytes() == blob


@pytest.mark.parametrize("blob", [tiny(), fixture("points")], ids=["summary", "points"])
def test_every_bit_flip_and_cut_of_a_tiny_message_is_refused(blob):
    assert all(is_refused(flipped(blob, bit)) for bit in range(8 * len(blob)))
    assert all(is_refused(blob[:n]) for n in range(len(blob)))


@settings(max_examples=100, deadline=None)
@given(tail=st.binary(min_size=1, max_size=40))
def test_appended_and_prepended_bytes_are_refused(tail):
    assert is_refused(tiny() + tail)
    assert is_refused(tail + tiny())


@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=300))
def test_random_bytes_are_refused(noise):
    assert is_refused(noise)
    assert is_refused(framed(noise))
    assert is_refused(framed(b"{" + noise))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
ACCOUNTS = [f"accounts.{name}" for name in fedran.Accounts.__dataclass_fields__]
PATHS = [*ACCOUNTS, "version", "kind", "precision", "out_features", "rank", "classes", "counts"]
PATHS += ["center", "fingerprint"]


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from([*PATHS, "accounts", "format"]), value=JSON)
def test_any_json_in_any_field_is_read_or_refused(path, value):
    """Some values are legal (a larger eps_B is a weaker claim). None raises another exception."""
    is_refused(tampered(tiny(), set_field(path, value)))


OTHERS = [
    "points",
    "head",
    "kernel_head",
    "aggregator_points",
    "aggregator_stack",
    "aggregator_gram",
]


@settings(max_examples=300, deadline=None)
@given(data=st.data(), name=st.sampled_from(OTHERS), value=JSON)
def test_any_json_in_any_field_of_other_kinds_is_read_or_refused(data, name, value):
    paths = list(dotted(Message.of(fixture(name)).fields))
    is_refused(tampered(fixture(name), set_field(data.draw(st.sampled_from(paths)), value)))


def dotted(fields: dict, path: str = "") -> Iterator[str]:
    """The dotted paths of all fields, nested ones included."""
    for key, value in fields.items():
        yield path + key
        if isinstance(value, dict):
            yield from dotted(value, f"{path}{key}.")


@settings(max_examples=150, deadline=None)
@given(entries=st.dictionaries(st.sampled_from(["a", "sigma", "__metadata__"]), JSON))
def test_any_json_as_the_outer_header_is_refused(entries):
    assert is_refused(framed(json.dumps(entries).encode()))


def outer(entry: str, body: bytes = b"") -> bytes:
    """A message whose only tensor has this JSON entry."""
    return framed(b'{"__metadata__":{"fedran":"{}","sha256":""},' + entry.encode() + b"}", body)


@pytest.mark.parametrize(
    "blob",
    [
        framed(b'{"__metadata__":null}'),
        framed(b"{}"),
        framed(b'{"__metadata__":{"format":"pt"}}'),
        framed(b'{"__metadata__":{"fedran":"{}"}}'),
        outer(f'"a":{{"dtype":"U8","shape":[{"1," * 64}1],"data_offsets":[0,1]}}', b"x"),
        outer(f'"a":{{"dtype":"F64","shape":[0,{2**62}],"data_offsets":[0,0]}}'),
        outer(f'"a":{{"dtype":"U8","shape":[{2**63},0],"data_offsets":[0,0]}}'),
        outer('"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}', b"x"),
        outer('"a":{"dtype":"U8","shape":[9],"data_offsets":[0,1]}', b"x"),
        outer('"a\\n\\u001b[31m":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}'),
        outer('"a":{"dtype":"Q7","shape":[0],"data_offsets":[0,0]}'),
        outer(f'"{"a" * 2000}":{{"dtype":"BF16","shape":[0],"data_offsets":[0,0]}}'),
    ],
    ids=range(12),
)
def test_a_wrong_safetensors_header_is_refused(blob):
    assert_refused(blob, "expected")


@pytest.mark.parametrize("path", ["kind", "classes", "accounts.energy", "fingerprint.seed"])
def test_deeply_nested_json_is_refused(path):
    """Every depth around the recursion limit: repr may fail where the parser does not."""
    message = Message.of(encoded())
    set_field(path, "DEEP")(message)
    text = json.dumps(message.fields)
    for depth in (10, 100, *range(850, 1000), 5000):
        message.text = text.replace('"DEEP"', "[" * depth + "]" * depth)
        assert is_refused(message.bytes())


@pytest.mark.parametrize("text", ["", "[]", "null", "3", '"a"', "{", '{"a":NaN}', "1" * 5000])
def test_a_header_that_is_no_json_object_is_refused(text):
    message = Message.of(encoded())
    message.text = text
    assert_refused(message.bytes(), "header")
