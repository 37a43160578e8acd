"""Mixtures as bytes: what rounding changes, how large they are, and which forgeries are refused."""

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedran
from fedran.cli.inspect import describe
from fedran.wire.codec import decode, encode
from fedran.wire.files import load, save
from helpers.core.reference import quick
from helpers.wire.messages import (
    INF,
    NAN,
    NOT_NUMBERS,
    SMALL,
    Message,
    drop_field,
    put,
    put_stream,
    set_field,
    tampered,
)

D = 12
GROUPS = 17
"""Groups of ``mixture()``."""


def mixture(n=60, d=D, kind="cosine", group_size=4, min_group=2, directions=3, seed=0, classes=3):
    rng = np.random.default_rng(seed)
    y = [("ant", "bee", 7, 8)[i % classes] for i in range(n)]
    centres = {label: rng.random(d) for label in dict.fromkeys(y)}
    Z = np.stack([centres[label] for label in y]) + 0.5 * rng.random((n, d))
    phi = fedran.RandomFeatures(d, 8, kind=kind)
    return fedran.condense(Z, y, phi, group_size, min_group, directions)


@cache
def encoded(precision="mixed"):
    return encode(mixture(), precision)


def is_refused(blob, limits=SMALL):
    try:
        decode(blob, fedran.Mixture, limits=limits)
        text = ""
    except fedran.Refused as reason:
        text = str(reason)
    assert not text or text.isprintable()
    return bool(text)


def assert_refused(blob, named, limits=SMALL):
    with pytest.raises(fedran.Refused) as caught:
        decode(blob, fedran.Mixture, limits=limits)
    assert named in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


@quick
@given(
    st.sampled_from(["cosine", "hellinger", "relu"]),
    st.integers(1, 6),
    st.integers(0, 6),
    st.sampled_from([2, 4.5, 5, 8, 14]),
    st.integers(0, 9),
)
def test_decoding_returns_counts_exactly_and_means_to_rounding(
    kind, min_group, directions, bits, seed
):
    m = mixture(kind=kind, min_group=min_group, directions=directions, seed=seed)
    back = decode(encode(m, bits=bits), fedran.Mixture)
    assert (back.classes, back.counts, back.n_rows) == (m.classes, m.counts, m.n_rows)
    assert back.fingerprint == m.fingerprint
    assert back.digest is not None
    for a, b in zip(m.parts, back.parts, strict=True):
        assert np.array_equal(a.codes, b.codes)
        assert np.array_equal(a.counts, b.counts)
        np.testing.assert_allclose(b.spreads, a.spreads, rtol=1e-6)
        np.testing.assert_allclose(b.shares, a.shares, rtol=1e-6)
        np.testing.assert_allclose(
            np.linalg.norm(b.means, axis=1), np.linalg.norm(a.means, axis=1), rtol=1e-5
        )
        if bits >= 5:
            error = np.linalg.norm(b.means - a.means, axis=1) / np.linalg.norm(a.means, axis=1)
            assert error.max() < 2.0 ** (1 - int(bits))
        if directions:
            eye = b.directions @ b.directions.T
            np.testing.assert_allclose(eye, np.eye(len(eye)), atol=1e-5)
            assert np.abs(np.sum(a.directions * b.directions, axis=1)).min() > 0.9


def test_float32_is_exact():
    m = mixture()
    back = decode(encode(m, "float32"), fedran.Mixture)
    for a, b in zip(m.parts, back.parts, strict=True):
        assert np.array_equal(a.means, b.means)
        assert np.array_equal(a.directions, b.directions)


def test_the_same_mixture_gives_the_same_bytes_and_nothing_about_withheld_classes():
    m = mixture(n=42)
    rare = replace(m, withheld={"a secret": 1})
    assert encode(m) == encode(mixture(n=42)) == encode(rare)
    assert decode(encode(rare), fedran.Mixture).withheld == {}


def test_parts_and_empty_mixtures_travel_too():
    a, b = mixture(seed=1), mixture(seed=2, directions=0, classes=2)
    both = decode(encode(a + b), fedran.Mixture)
    assert [len(p.shares) for p in both.parts] == [3, 0]
    assert (both.classes, both.counts) == ((a + b).classes, (a + b).counts)
    alone = decode(encode(a), fedran.Mixture)
    np.testing.assert_allclose(both.parts[0].means, alone.parts[0].means)
    nothing = mixture(n=3, min_group=5)
    assert decode(encode(nothing), fedran.Mixture).parts == ()
    assert decode(encode(nothing, "float32"), fedran.Mixture).n_rows == 0


def test_directions_with_one_large_entry_stay_orthonormal():
    m = mixture(d=40, directions=2)
    v = np.full((2, 40), 1e-3)
    v[:, 0] = 1.0  # nearly the same to few bits
    v[0, 1:20] *= -60
    v[1, 20:] *= 60
    q = np.linalg.qr(v.T)[0].T.astype(np.float32)
    part = replace(m.parts[0], directions=q, shares=np.array([0.5, 0.2]))
    back = decode(encode(replace(m, parts=(part,))), fedran.Mixture).parts[0].directions
    assert np.abs(np.sum(back * q, axis=1)).min() > 0.7


def test_the_size_is_that_of_the_bits_after_compression():
    rng = np.random.default_rng(0)
    Z = np.abs(rng.standard_normal((600, 400)))
    phi = fedran.RandomFeatures(400, 8, kind="hellinger")
    m = fedran.condense(Z, [i % 10 for i in range(600)], phi, 3, 1)
    size = len(encode(m))
    assert 3 * m.n_groups * 400 / 8 < size < 5 * m.n_groups * 400 / 8 + 16 * 400 * 0.6 + 4000
    assert size < len(encode(m, bits=6)) < len(encode(m, "float32"))


def test_a_byte_limit_is_kept_or_the_mixture_is_not_encoded():
    m = mixture()
    assert encode(m, max_bytes=len(encoded())) == encoded()
    with pytest.raises(ValueError, match="larger group_size"):
        encode(m, max_bytes=len(encoded()) - 1)
    with pytest.raises(ValueError, match="mixed or float32"):
        encode(m, "int8")
    with pytest.raises(ValueError, match="bits must lie"):
        encode(m, bits=1)


def test_files_and_descriptions(tmp_path):
    path = tmp_path / "upload.fedran"
    assert save(mixture(), path) == path.stat().st_size
    m = load(path, fedran.Mixture)
    assert m.digest == decode(encoded(), fedran.Mixture).digest
    title, sections, _ = describe(path)
    assert "mixture" in title
    assert sections["content"]["rows"] == 60
    with pytest.raises(fedran.Refused, match="kind: expected summary, got mixture"):
        load(path, fedran.Summary)


@pytest.mark.parametrize("precision", ["mixed", "float32"])
def test_damaged_messages_are_refused(precision):
    blob = encoded(precision)
    assert Message.of(blob).bytes() == blob
    assert all(is_refused(blob[:n]) for n in range(0, len(blob), 7))
    for bit in random.Random(0).sample(range(8 * len(blob)), 300):
        changed = bytearray(blob)
        changed[bit // 8] ^= 1 << bit % 8
        assert is_refused(bytes(changed))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(path=st.sampled_from(["precision", "in_features", "fingerprint", "parts"]), value=JSON)
def test_any_json_in_any_field_is_read_or_refused(path, value):
    is_refused(tampered(encoded(), set_field(path, value)))


@settings(max_examples=200, deadline=None)
@given(key=st.sampled_from(["classes", "groups", "directions"]), value=JSON)
def test_any_json_in_any_field_of_a_part_is_read_or_refused(key, value):
    def change(message):
        message.fields["parts"][0][key] = value

    is_refused(tampered(encoded(), change))


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(["counts", "spreads", "shares", "means_bits", "means_scale"]),
    where=st.integers(0, 10**6),
    value=st.integers(0, 255),
)
def test_any_byte_in_any_tensor_is_read_or_refused(name, where, value):
    def change(message):
        dtype, shape, data = message.tensors[name]
        changed = bytearray(data)
        changed[where % len(changed)] = value
        message.tensors[name] = (dtype, shape, bytes(changed))

    blob = tampered(encoded(), change)
    if not is_refused(blob):
        assert all(np.all(np.isfinite(d.rows)) for d in decode(blob, fedran.Mixture).draw())


def part_field(key, value):
    def change(message):
        message.fields["parts"][0][key] = value

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (set_field("precision", "int8"), "precision"),
        (set_field("in_features", D + 1), "means"),
        (set_field("in_features", 0), "in_features"),
        (set_field("fingerprint", None), "fingerprint"),
        (drop_field("fingerprint"), "fingerprint"),
        (set_field("parts", []), "counts"),
        (set_field("parts", [3]), "parts.0"),
        (part_field("classes", []), "parts.0.classes"),
        (part_field("classes", ["b", "a", 1]), "parts.0.classes"),
        (part_field("groups", [1, 1]), "parts.0.groups"),
        (part_field("groups", [0, 5, 5]), "parts.0.groups"),
        (part_field("groups", [10**9, 5, 5]), "parts.0.groups"),
        (part_field("directions", -1), "parts.0.directions"),
        (part_field("directions", 2), "shares"),
        (put("counts", np.zeros((GROUPS, 1)), "U8"), "counts"),
        (put("counts", np.zeros((GROUPS, 8)), "U8"), "counts"),
        (put("counts", np.full((GROUPS, 6), 255), "U8"), "counts"),
        (put("spreads", np.full(GROUPS, NAN)), "spreads"),
        (put("spreads", np.full(GROUPS, -1.0)), "spreads"),
        (put("spreads", np.full(GROUPS, 0.9)), "norm 1"),
        (put("shares", [0.5, 0.5, 0.5]), "shares"),
        (put("shares", [INF, 0.0, 0.0]), "shares"),
        (put("means_scale", np.full(GROUPS, INF)), "means_scale"),
        (put("means_scale", np.full(GROUPS, -1.0)), "means_scale"),
        (put("means_scale", np.full(GROUPS, 1.0)), "norm 1"),
        (put("means_bits", np.full(GROUPS, 1), "U8"), "means_bits"),
        (put("means_bits", np.full(GROUPS, 4), "U8"), "means"),
        (put_stream("means", bytes(GROUPS * D + 1)), "means"),
        (put_stream("directions", b"\x01" * 3 * D), "independent"),
        (put_stream("directions", bytes(3 * D)), "independent"),
        (put("extra", [1.0], "F32"), "tensors"),
        (lambda m: m.tensors.pop("means"), "means"),
    ],
)
def test_forged_fields_and_tensors_are_refused(change, named):
    assert mixture().n_groups == GROUPS
    assert_refused(tampered(encoded(), change), named)


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_sizes_must_be_integers(value):
    assert_refused(tampered(encoded(), set_field("in_features", value)), "in_features")


def test_limits_hold_before_memory_is_taken():
    assert_refused(encoded(), "groups", replace(SMALL, groups=GROUPS - 1))
    assert_refused(encoded(), "decoded", replace(SMALL, decoded=1000))
    assert_refused(encoded(), "in_features", replace(SMALL, out_features=D - 1))
    assert_refused(encoded(), "classes", replace(SMALL, classes=2))


@pytest.mark.parametrize("precision", ["mixed", "float32"])
def test_more_directions_than_columns_are_refused_before_their_products_are_formed(precision):
    q = 60_000  # a (q, q) matrix of float64 has 27 GiB

    def change(message):
        message.fields["in_features"] = 1
        message.fields["parts"] = [{"classes": [0], "groups": [1], "directions": q}]
        message.put("counts", np.ones((1, 1)), "U8")
        message.put("spreads", [0.1], "F32")
        message.put("shares", np.zeros(q), "F32")
        message.put("directions", np.ones((q, 1)), "F32")
        message.put("means", [[0.5]], "F32")
        if precision == "mixed":
            message.put("means_bits", [8], "U8")
            message.put("means_scale", [0.001], "F32")
            message.put("directions_bits", np.full(q, 8), "U8")
            put_stream("means", b"\x7f")(message)
            put_stream("directions", b"\x7f" * q)(message)

    assert_refused(tampered(encoded(precision), change), "directions", fedran.Limits())


def test_a_fingerprint_with_a_number_beyond_64_bits_is_refused():
    change = set_field("fingerprint", {"kind": "cosine", "d": 10**400})
    assert_refused(tampered(encoded(), change), "fingerprint.d")
