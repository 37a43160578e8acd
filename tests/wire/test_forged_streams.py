"""Streams of codes and class sums that were forged, with a valid checksum, are refused."""

import numpy as np
import pytest

import fedran
from helpers.wire.messages import (
    CENTERS,
    INF,
    NAN,
    Message,
    assert_refused,
    codes,
    encoded,
    put,
    put_stream,
    tampered,
)


def wide(value, bits=14):
    """Three rows of 16 wide codes: the leading 8 bits, then a plane of 16 values per low bit."""
    leading = bytes([(value >> (bits - 8)) & 255]) * 48
    planes = [bytes([255 if value >> k & 1 else 0]) * 2 for k in range(bits - 8)]
    stream = leading + b"".join(planes) * 3

    def change(message):
        message.put("sums_bits", [bits] * 3)
        put_stream("sums", stream)(message)

    return change


STREAMS = {
    "zero rows": lambda name: put_stream(name, codes(0)),
    "codes beyond their bits": lambda name: put_stream(name, codes(127)),
    "code -128": lambda name: put_stream(name, codes(-128)),
    "bits understated": lambda name: lambda m: m.put(f"{name}_bits", m.array(f"{name}_bits") - 1),
    "too short": lambda name: put_stream(name, codes(1, rows=2)),
    "too long": lambda name: put_stream(name, codes(1, rows=4)),
    "bomb": lambda name: put_stream(name, bytes(50 * 2**20)),
    "empty": lambda name: put(name, [], "U8"),
    "no zlib": lambda name: put(name, [1, 2, 3], "U8"),
    "two-dimensional": lambda name: put(name, np.zeros((3, 16)), "U8"),
    "other dtype": lambda name: put(name, np.zeros(48), "I8"),
    "cut stream": lambda name: lambda m: m.put(name, m.array(name)[:-1]),
    "trailing garbage": lambda name: lambda m: m.put(name, [*m.array(name), 0]),
    "second stream": lambda name: lambda m: m.put(name, [*m.array(name)] * 2),
    "bits of 0": lambda name: put(f"{name}_bits", [0, 5, 5]),
    "bits of 1": lambda name: put(f"{name}_bits", [1, 5, 5]),
    "bits of 15": lambda name: put(f"{name}_bits", [15, 5, 5]),
    "bits of 255": lambda name: put(f"{name}_bits", [255, 5, 5]),
    "too few bits": lambda name: put(f"{name}_bits", [5, 5]),
    "bits of two dimensions": lambda name: put(f"{name}_bits", [[5, 5, 5]]),
    "wide rows announced": lambda name: put(f"{name}_bits", [14, 14, 14]),
    "no stream": lambda name: lambda m: m.tensors.pop(name),
    "no bits": lambda name: lambda m: m.tensors.pop(f"{name}_bits"),
}


@pytest.mark.parametrize("name", ["directions", "sums"])
@pytest.mark.parametrize("case", STREAMS)
def test_a_forged_stream_is_refused(case, name):
    assert_refused(tampered(encoded(), STREAMS[case](name)), name)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (put_stream("directions", codes(1)), "directions"),
        (wide(-256, bits=9), "sums"),
        (wide(-8192), "sums"),
    ],
    ids=["equal directions", "-256 in 9 bits", "-8192 in 14 bits"],
)
def test_equal_directions_and_codes_below_the_smallest_are_refused(change, named):
    assert_refused(tampered(encoded(), change), named)


NORMS = {
    "negative": [-1.0, 1.0, 1.0],
    "NaN": [NAN, 1.0, 1.0],
    "infinite": [INF, 1.0, 1.0],
    "0 with codes": [0.0, 1.0, 1.0],
    "-0.0 with codes": [-0.0, 1.0, 1.0],
    "1e308": [1e308, 1.0, 1.0],
    "squares overflow": [1e200, 1.0, 1.0],
    "beyond float32": [1e20, 1.0, 1.0],
    "beyond the energy": [1e3, 1.0, 1.0],
    "too few": [1.0],
    "two dimensions": [[1.0, 1.0, 1.0]],
}


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("case", NORMS)
def test_forged_norms_of_class_sums_are_refused(case, center):
    blob = encoded(center=center)
    assert_refused(tampered(blob, put("sums_norm", NORMS[case])), "sums")
    assert_refused(tampered(blob, lambda m: m.tensors.pop("sums_norm")), "sums_norm")
    assert_refused(tampered(blob, put("sums_norm", [1.0, 1.0, 1.0], "F32")), "sums_norm")


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("norm", [-1.0, 1.0, 1e-300, NAN, INF])
def test_a_class_sum_of_zeros_has_the_norm_zero(norm, center):
    H = np.array([[1.0, 2.0], [-1.0, -2.0], [3.0, 1.0]])
    blob = fedran.encode(fedran.summarize(H, list("aab"), center=center))
    norms = Message.of(blob).array("sums_norm")
    assert norms[0] == 0.0
    assert_refused(tampered(blob, put("sums_norm", [norm, norms[1]])), "sums")


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_the_norms_of_centred_class_sums_must_make_up_the_energy(factor):
    def change(message):
        message.put("sums_norm", message.array("sums_norm") * factor)

    assert_refused(tampered(encoded(), change), "accounts.energy")


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("value", [NAN, INF, -INF, 0.0])
def test_class_sums_must_be_finite(precision, center, value):
    sums = Message.of(encoded(precision, center)).array("sums").copy()
    sums[1] = value
    blob = tampered(encoded(precision, center), put("sums", sums))
    if value == 0.0 and center is None:  # no norm contradicts it
        assert not fedran.decode(blob).class_sums[:, 1].any()
    else:
        assert_refused(blob, "sums" if value else "accounts.energy")


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("value", ["max", 1e4])
def test_class_sums_must_be_possible_for_the_energy(precision, center, value):
    sums = Message.of(encoded(precision, center)).array("sums").copy()
    sums[1] = np.finfo(sums.dtype).max if value == "max" else value
    assert_refused(tampered(encoded(precision, center), put("sums", sums)), "sums")


@pytest.mark.parametrize("center", CENTERS)
def test_a_large_eps_B_does_not_excuse_impossible_sums(center):
    """eps_B is a claim of the sender and must not widen the bound on B."""

    def lie(message):
        message.fields["accounts"]["eps_B"] = 1e30
        message.put("sums_norm", [1e12, 1.0, 1.0])

    assert_refused(tampered(encoded(center=center), lie), "class_sums")
