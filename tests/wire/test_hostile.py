"""Messages from strangers: damaged, random, or made by someone who knows the format."""

import json
import random
import tracemalloc
import zlib
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard

import fedran
from helpers.wire_messages import (
    PRECISIONS,
    SMALL,
    Message,
    assert_refused,
    framed,
    solved_head,
    summary,
    tampered,
)

NAN, INF = float("nan"), float("inf")
NOT_NUMBERS = [None, True, "1", [], {}, [1.0]]
ACCOUNTS = [f"accounts.{name}" for name in fedran.Accounts.__dataclass_fields__]
DIAGNOSIS = [f"diagnosis.{n}" for n in fedran.Diagnosis.__dataclass_fields__ if n != "route"]


@cache
def good(precision: str = "mixed") -> bytes:
    return fedran.encode(summary(), precision)


@cache
def tiny() -> bytes:
    s = fedran.summarize(np.array([[1.0, 2.0], [2.0, 0.5]]), ["a", 3], rank=2)
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


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_forger_writes_what_the_encoder_writes(precision):
    assert Message.of(good(precision)).bytes() == good(precision)


def test_every_bit_flip_of_a_tiny_message_is_refused():
    accepted = [bit for bit in range(8 * len(tiny())) if not is_refused(flipped(tiny(), bit))]
    assert accepted == []


@pytest.mark.parametrize("precision", PRECISIONS)
def test_bit_flips_of_a_larger_message_are_refused(precision):
    blob = fedran.encode(summary(n=80, M=64, rank=20), precision)
    bits = random.Random(0).sample(range(8 * len(blob)), 500)
    assert all(is_refused(flipped(blob, bit)) for bit in bits)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_truncation_at_every_length_is_refused(precision):
    blob = good(precision)
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
PATHS = [*ACCOUNTS, "version", "kind", "precision", "out_features", "rank", "classes", "counts"]


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from([*PATHS, "accounts", "format"]), value=JSON)
def test_any_json_in_any_field_is_read_or_refused(path, value):
    """Some values are legal (a larger eps_B is a weaker claim); none may raise anything else."""

    def put(message):
        inner, last = message.section(path)
        inner[last] = value

    is_refused(tampered(tiny(), put))


@settings(max_examples=150, deadline=None)
@given(entries=st.dictionaries(st.sampled_from(["a", "sigma", "__metadata__"]), JSON))
def test_any_json_as_the_outer_header_is_refused(entries):
    assert is_refused(framed(json.dumps(entries).encode()))


def outer(entry: str, body: bytes = b"") -> bytes:
    """A message whose one tensor has this JSON; refused before or at the checksum."""
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
def test_hostile_outer_headers(blob):
    assert_refused(blob, "expected")


def set_field(path, value):
    def change(message):
        inner, last = message.section(path)
        inner[last] = value

    return change


def drop_field(path):
    def change(message):
        inner, last = message.section(path)
        del inner[last]

    return change


@pytest.mark.parametrize("value", [NAN, INF, -INF, -1.0, -(10**30), 10**30, *NOT_NUMBERS])
@pytest.mark.parametrize("path", ACCOUNTS)
def test_accounts_are_finite_numbers(path, value):
    blob = tampered(good(), set_field(path, value))
    assert_refused(blob, path if value == value and abs_finite(value) else "")


def abs_finite(value) -> bool:
    """NaN and infinity are refused by the parser, which knows no field."""
    return not isinstance(value, float) or value in (-1.0,)


@pytest.mark.parametrize("path", ACCOUNTS)
def test_numbers_that_overflow_to_infinity(path):
    message = Message.of(good())
    set_field(path, "BIG")(message)
    message.text = json.dumps(message.fields).replace('"BIG"', "1e999")
    assert_refused(message.bytes(), path)


@pytest.mark.parametrize("path", [*PATHS, "accounts", "format", "fingerprint"])
def test_missing_fields(path):
    assert_refused(tampered(good(), drop_field(path)), path)


@pytest.mark.parametrize("path", ["out_features", "rank", "accounts.n_rows", "accounts.merges"])
@pytest.mark.parametrize("value", [1.0, 2**63, -1, *NOT_NUMBERS])
def test_integers_are_integers(path, value):
    assert_refused(tampered(good(), set_field(path, value)), path)


FIELDS = {
    "sections are objects": ("accounts", [], "accounts"),
    "unknown account": ("accounts.karma", 1.0, "karma"),
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
    "energy too small": ("accounts.energy", 1.0, "accounts.energy"),
    "energy of 0": ("accounts.energy", 0.0, "accounts.energy"),
    "energy too large": ("accounts.energy", 1e9, "accounts.energy"),
    "energy beyond squares": ("accounts.energy", 1e300, "accounts.energy"),
    "cut that does not fit": ("accounts.cut", 1e9, "accounts.energy"),
    "newer major": ("version", "2.0", "version"),
    "version garbage": ("version", "one", "version"),
    "version without minor": ("version", "1", "version"),
    "version of other digits": ("version", "1.²", "version"),
    "version number": ("version", 1.0, "version"),
    "long version": ("version", "1." + "0" * 20, "version"),
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


@pytest.mark.parametrize("case", FIELDS)
def test_hostile_fields(case):
    path, value, named = FIELDS[case]
    assert_refused(tampered(good(), set_field(path, value)), named)


@pytest.mark.parametrize("path", ["kind", "classes", "accounts.energy", "fingerprint.seed"])
def test_deep_nesting(path):
    """Every depth around the recursion limit: what the parser just takes, repr may not."""
    message = Message.of(good())
    set_field(path, "DEEP")(message)
    text = json.dumps(message.fields)
    for depth in (10, 100, *range(850, 1000), 5000):
        message.text = text.replace('"DEEP"', "[" * depth + "]" * depth)
        assert is_refused(message.bytes())


@pytest.mark.parametrize("text", ["", "[]", "null", "3", '"a"', "{", '{"a":NaN}', "1" * 5000])
def test_header_texts_that_are_no_object(text):
    message = Message.of(good())
    message.text = text
    assert_refused(message.bytes(), "header")


def put(name, value, dtype=None):
    return lambda message: message.put(name, value, dtype)


def stream(name, data, level=9):
    return put(name, np.frombuffer(zlib.compress(data, level), np.uint8))


@pytest.mark.parametrize(
    "sigma",
    [
        [1.0, 2.0, 3.0],
        [3.0, 2.0, -1.0],
        [3.0, 2.0, 0.0],
        [NAN, 2.0, 1.0],
        [INF, 2.0, 1.0],
        [1e300, 2.0, 1.0],
        [1e20, 2.0, 1.0],
        [3.0, 2.0, 5e-324],
    ],
)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_sigma(precision, sigma):
    fits = sigma[-1] == 5e-324 or (sigma[0] == 1e20 and precision == "float64")
    named = "accounts.energy" if fits else "sigma"
    assert_refused(tampered(good(precision), put("sigma", sigma)), named)


@pytest.mark.parametrize("precision", ["float64", "float32", "float16", "int8"])
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
    rows = Message.of(good(precision)).array("directions")
    assert_refused(tampered(good(precision), put("directions", damage(rows))), "directions")


@pytest.mark.parametrize("precision", ["float64", "float32", "float16"])
@pytest.mark.parametrize("value", [NAN, INF, -INF, "max", "tiny"])
def test_directions_must_be_finite(precision, value):
    rows = Message.of(good(precision)).array("directions").copy()
    limits = np.finfo(rows.dtype)
    rows[1] = {"max": limits.max, "tiny": limits.smallest_subnormal}.get(value, value)
    assert_refused(tampered(good(precision), put("directions", rows)), "directions")


def codes(value, rows=3, dtype=np.int8):
    return np.full((rows, 16), value, dtype=dtype).tobytes()


STREAMS = {
    "equal rows": stream("directions", codes(1)),
    "zero rows": stream("directions", codes(0)),
    "codes beyond their bits": stream("directions", codes(127)),
    "bits understated": lambda m: m.put("directions_bits", m.array("directions_bits") - 1),
    "code -128": stream("directions", codes(-128)),
    "too short": stream("directions", codes(1, rows=2)),
    "too long": stream("directions", codes(1, rows=4)),
    "bomb": stream("directions", bytes(50 * 2**20)),
    "empty": put("directions", [], "U8"),
    "no zlib": put("directions", [1, 2, 3], "U8"),
    "two-dimensional": put("directions", np.zeros((3, 16)), "U8"),
    "other dtype": put("directions", np.zeros(48), "I8"),
    "cut stream": lambda m: m.put("directions", m.array("directions")[:-1]),
    "trailing garbage": lambda m: m.put("directions", [*m.array("directions"), 0]),
    "second stream": lambda m: m.put("directions", [*m.array("directions")] * 2),
    "bits of 0": put("directions_bits", [0, 5, 5]),
    "bits of 1": put("directions_bits", [1, 5, 5]),
    "bits of 15": put("directions_bits", [15, 5, 5]),
    "bits of 255": put("directions_bits", [255, 5, 5]),
    "too few bits": put("directions_bits", [5, 5]),
    "bits of two dimensions": put("directions_bits", [[5, 5, 5]]),
    "wide rows announced": put("directions_bits", [14, 14, 14]),
    "no directions": lambda m: m.tensors.pop("directions"),
    "no bits": lambda m: m.tensors.pop("directions_bits"),
}


@pytest.mark.parametrize("case", STREAMS)
def test_hostile_streams_of_directions(case):
    assert_refused(tampered(good(), STREAMS[case]), "directions")


def wide(value):
    """Three rows of 16 codes + 32768 in the layout of the wide rows."""
    raw = np.full(48, value + 32768, np.uint16)
    return (raw >> 8).astype(np.uint8).tobytes() + (raw & 255).astype(np.uint8).tobytes()


SUMS = {
    "codes beyond 12 bits": stream("sums", wide(2048)),
    "most negative code": stream("sums", wide(-32768)),
    "too short": stream("sums", wide(1)[:-1]),
    "bomb": stream("sums", bytes(50 * 2**20)),
    "scale 0": put("sums_scale", [0.0, 1.0, 1.0]),
    "scale negative": put("sums_scale", [-1.0, 1.0, 1.0]),
    "scale NaN": put("sums_scale", [NAN, 1.0, 1.0]),
    "scale infinite": put("sums_scale", [INF, 1.0, 1.0]),
    "scale 1e308": put("sums_scale", [1e308, 1.0, 1.0]),
    "scale whose squares overflow": put("sums_scale", [1e200, 1.0, 1.0]),
    "scale too large": put("sums_scale", [1e3, 1.0, 1.0]),
    "too few scales": put("sums_scale", [1.0]),
    "no scales": lambda m: m.tensors.pop("sums_scale"),
    "no sums": lambda m: m.tensors.pop("sums"),
}


@pytest.mark.parametrize("case", SUMS)
def test_hostile_class_sums(case):
    assert_refused(tampered(good(), SUMS[case]), "sums")


@pytest.mark.parametrize("precision", ["float64", "float32", "float16", "int8"])
@pytest.mark.parametrize("value", [NAN, INF, -INF, "max", 1e4])
def test_class_sums_must_be_possible(precision, value):
    sums = Message.of(good(precision)).array("sums").copy()
    sums[1] = np.finfo(sums.dtype).max if value == "max" else value
    assert_refused(tampered(good(precision), put("sums", sums)), "sums")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_extra_missing_and_foreign_tensors(precision):
    blob = good(precision)
    assert_refused(tampered(blob, put("extra", [1.0], "F32")), "extra")
    assert_refused(tampered(blob, put("a\x1b[31m\n", [1.0], "F32")), "tensors")
    assert_refused(tampered(blob, lambda m: m.tensors.pop("sigma")), "sigma")
    assert_refused(tampered(blob, put("sigma", [3.0, 2.0, 1.0], "F32")), "sigma")
    for dtype in ("I64", "BF16"):
        size = 8 if dtype == "I64" else 2
        foreign = (dtype, [3], bytes(3 * size))
        assert_refused(tampered(blob, lambda m, t=foreign: m.tensors.update(sigma=t)), "sigma")


def test_a_claimed_rounding_error_does_not_excuse_impossible_sums():
    """eps_B is the sender's word: it may not open the bound that B has to keep."""

    def lie(message):
        message.fields["accounts"]["eps_B"] = 1e30
        message.put("sums_scale", [1e12, 1.0, 1.0])

    assert_refused(tampered(good(), lie), "")


@pytest.mark.parametrize("rows", [0, 2])
def test_more_directions_than_rows_are_refused(rows):
    def lie(message):
        message.fields.update(classes=[], counts=[])
        message.fields["accounts"]["n_rows"] = rows
        message.put("sums_scale", [])
        stream("sums", b"")(message)

    assert_refused(tampered(good(), lie), "n_rows")


def test_a_rank_of_zero_with_energy_is_refused():
    def empty(message):
        message.fields["rank"] = 0
        message.put("sigma", [])
        message.put("directions_bits", [])
        stream("directions", b"")(message)

    assert_refused(tampered(good(), empty), "accounts.energy")


def test_limits_on_sizes():
    blob = good()
    assert_refused(blob, "message", fedran.Limits(message=len(blob) - 1))
    assert_refused(blob, "message", fedran.Limits(header=64))
    assert_refused(blob, "message", fedran.Limits(decoded=1000))
    assert_refused(blob, "out_features", fedran.Limits(out_features=15))
    assert_refused(blob, "classes", fedran.Limits(classes=2))
    assert_refused(blob, "classes", fedran.Limits(label_length=2))
    assert fedran.decode(blob, limits=SMALL).rank == 3


def least_decoded(blob: bytes) -> fedran.Limits:
    """The smallest ``decoded`` limit that lets a message pass."""
    low, high = 0, 2**30
    while high - low > 1:
        middle = (low + high) // 2
        try:
            fedran.decode(blob, limits=fedran.Limits(decoded=middle))
            high = middle
        except fedran.Refused:
            low = middle
    return fedran.Limits(decoded=high)


def compact(bits: int) -> bytes:
    """A legal message far smaller than what it decodes to: Hadamard rows, one code twice."""
    M, r = 4096, 64
    level = 2 ** (bits - 1) - 1
    signs = np.tile(hadamard(r), M // r).astype(np.int32) * level
    raw = signs.astype(np.int8) if bits <= 8 else (signs + 32768).astype(np.uint16)
    data = raw.tobytes() if bits <= 8 else (raw >> 8).astype("u1").tobytes()
    data += b"" if bits <= 8 else (raw & 255).astype("u1").tobytes()
    message = Message.of(good())
    message.fields.update(out_features=M, rank=r, classes=[], counts=[])
    message.fields["accounts"].update(n_rows=r, energy=float(r), cut=0.0)
    message.put("sigma", np.ones(r))
    message.put("directions_bits", np.full(r, bits))
    stream("directions", data)(message)
    message.put("sums_scale", [])
    stream("sums", b"")(message)
    return message.bytes()


def plain(precision: str) -> bytes:
    return fedran.encode(summary(n=128, M=2048, rank=64), precision)


@pytest.mark.parametrize(
    "make",
    [*(lambda b=b: compact(b) for b in (5, 14)), *(lambda p=p: plain(p) for p in PRECISIONS)],
    ids=["compact 5", "compact 14", *PRECISIONS],
)
def test_the_limit_on_decoded_bytes_holds(make):
    blob = make()
    limits = least_decoded(blob)
    fedran.decode(blob, limits=limits)
    tracemalloc.start()
    try:
        fedran.decode(blob, limits=limits)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limits.decoded + 3 * len(blob) + 64 * 1024


class TestHeads:
    @pytest.fixture
    def blob(self):
        return fedran.encode(solved_head())

    @pytest.mark.parametrize("path", DIAGNOSIS)
    @pytest.mark.parametrize("value", [NAN, -1.0, 10**30, *NOT_NUMBERS])
    def test_diagnosis(self, blob, path, value):
        named = path if value == value else "header"
        assert_refused(tampered(blob, set_field(path, value)), named, kind=fedran.Head)

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
    def test_fields(self, blob, path, value):
        named = {"out_features": "", "fingerprint": "fingerprint.a"}.get(path, path)
        assert_refused(tampered(blob, set_field(path, value)), named, kind=fedran.Head)

    @pytest.mark.parametrize("path", ["diagnosis", "diagnosis.lam", "classes", "fingerprint"])
    def test_missing(self, blob, path):
        assert_refused(tampered(blob, drop_field(path)), path, kind=fedran.Head)

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
    def test_weights(self, blob, change):
        assert_refused(tampered(blob, change), "weights", kind=fedran.Head)

    def test_limits(self, blob):
        assert_refused(blob, "message", fedran.Limits(decoded=100), fedran.Head)
        assert_refused(blob, "kind: expected summary, got head")
