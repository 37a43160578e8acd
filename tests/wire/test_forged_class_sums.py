"""Class sums forged by someone who knows the format, with a valid checksum, are refused."""

import numpy as np
import pytest

import fedran
from helpers.wire_messages import (
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


SUMS = {
    "codes beyond 7 bits": put_stream("sums", codes(64)),
    "code -128": put_stream("sums", codes(-128)),
    "most negative code of 9 bits": wide(-256, bits=9),
    "most negative code of 14 bits": wide(-8192),
    "too short": put_stream("sums", codes(1)[:-1]),
    "too long": put_stream("sums", codes(1, rows=4)),
    "bomb": put_stream("sums", bytes(50 * 2**20)),
    "no zlib": put("sums", [1, 2, 3], "U8"),
    "trailing garbage": lambda m: m.put("sums", [*m.array("sums"), 0]),
    "bits of 0": put("sums_bits", [0, 7, 7]),
    "bits of 1": put("sums_bits", [1, 7, 7]),
    "bits of 15": put("sums_bits", [15, 7, 7]),
    "bits of 255": put("sums_bits", [255, 7, 7]),
    "bits understated": lambda m: m.put("sums_bits", m.array("sums_bits") - 1),
    "wide rows announced": put("sums_bits", [9, 9, 9]),
    "too few bits": put("sums_bits", [7, 7]),
    "bits of two dimensions": put("sums_bits", [[7, 7, 7]]),
    "no bits": lambda m: m.tensors.pop("sums_bits"),
    "zero codes with a norm": put_stream("sums", codes(0)),
    "no sums": lambda m: m.tensors.pop("sums"),
}


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("case", SUMS)
def test_forged_codes_of_class_sums_are_refused(case, center):
    blob = encoded(center=center)
    assert Message.of(blob).array("sums_bits").tolist() == [7, 7, 7]
    assert_refused(tampered(blob, SUMS[case]), "sums")


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
