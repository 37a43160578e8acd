"""Rounding rows to few bits, and compressing the codes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fedran
from fedran.wire.quantisation import (
    MAX_BITS,
    MIN_BITS,
    allocate_bits,
    largest_code,
    pack_codes,
    quantise,
    unpack_codes,
)

BITS = st.integers(MIN_BITS, MAX_BITS)
NUMBERS = st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-290)


@settings(deadline=None)
@given(
    hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1e300)),
    st.floats(MIN_BITS, MAX_BITS),
)
def test_bits_stay_in_range_and_follow_sigma(sigma, average):
    bits = allocate_bits(np.sort(sigma)[::-1], average)
    assert bits.dtype == np.uint8
    assert bits.min() >= MIN_BITS
    assert bits.max() <= MAX_BITS
    assert np.all(np.diff(bits.astype(int)) <= 0)


@settings(deadline=None)
@given(
    hnp.arrays(np.float64, (3, 7), elements=NUMBERS),
    hnp.arrays(np.uint8, 3, elements=BITS),
)
def test_codes_are_the_nearest_and_reach_their_largest(rows, bits):
    codes = quantise(rows, bits)
    scale = np.abs(rows).max(axis=1) / largest_code(bits)
    assert np.all(np.abs(codes * scale[:, None] - rows) <= scale[:, None] * (0.5 + 1e-6))
    some = rows.any(axis=1)
    assert np.all(np.abs(codes).max(axis=1)[some] == largest_code(bits)[some])


@st.composite
def coded_rows(draw):
    bits = draw(hnp.arrays(np.uint8, st.integers(0, 8), elements=BITS))
    width = draw(st.integers(1, 20))
    top = largest_code(bits)[:, None]
    share = draw(hnp.arrays(np.float64, (len(bits), width), elements=st.floats(-1, 1)))
    return np.rint(share * top).astype(np.int16), bits


@settings(deadline=None)
@given(coded_rows())
def test_unpack_inverts_pack(case):
    codes, bits = case
    back = unpack_codes(pack_codes(codes, bits), bits, codes.shape[1], "x")
    assert back.dtype == np.int16
    np.testing.assert_array_equal(back, codes)


@settings(deadline=None)
@given(coded_rows(), st.binary(max_size=30))
def test_unpack_refuses_every_other_stream(case, noise):
    codes, bits = case
    packed = pack_codes(codes, bits)
    for stream in (noise, packed + b"x", packed[:-1]):
        with pytest.raises(fedran.Refused, match="x: expected"):
            unpack_codes(stream, bits, codes.shape[1], "x")
