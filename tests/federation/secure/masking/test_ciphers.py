"""Masks, key agreement and envelopes against published vectors and slow references."""

from __future__ import annotations

import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran.core.errors import Refused
from fedran.federation.secure.masking.ciphers import (
    ENVELOPE_BYTES,
    add_mask,
    agree,
    derive,
    open_shares,
    private_key,
    public_bytes,
    seal_shares,
)


def block_by_block(key: bytes, length: int) -> np.ndarray:
    """AES-256 of 0, 1, 2, ..., one block of four numbers at a time."""
    blocks = []
    for counter in range(-(-length // 4)):
        aes = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        blocks.append(aes.update(counter.to_bytes(16, "big")))
    return np.frombuffer(b"".join(blocks), "<u4")[:length]


@given(st.binary(min_size=32, max_size=32), st.integers(1, 70), st.sampled_from([1, -1]))
@settings(max_examples=30, deadline=None)
def test_a_mask_is_aes_of_a_counter(key, length, sign):
    total = np.arange(length, dtype=np.uint32) * np.uint32(2**27)
    before = total.copy()
    add_mask(total, key, sign)
    expected = [
        (int(b) + sign * int(m)) % 2**32
        for b, m in zip(before, block_by_block(key, length), strict=True)
    ]
    assert total.tolist() == expected


@pytest.mark.parametrize("length", [2**18 - 1, 2**18, 2**18 + 1, 3 * 2**18 + 5])
def test_blocks_of_a_long_mask_continue_one_key_stream(length):
    total = np.zeros(length, np.uint32)
    add_mask(total, b"k" * 32, 1)
    stream = Cipher(algorithms.AES(b"k" * 32), modes.CTR(bytes(16))).encryptor()
    np.testing.assert_array_equal(total, np.frombuffer(stream.update(bytes(4 * length)), "<u4"))
    add_mask(total, b"k" * 32, -1)
    assert not total.any()


def hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 for one block of output, without a salt."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def test_key_agreement_is_x25519_of_rfc_7748_and_hkdf():
    nine = b"\x09" + bytes(31)  # the first iteration of section 5.2
    shared = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert agree(private_key(nine), nine, b"info") == hkdf(bytes.fromhex(shared), b"info")


def test_two_sites_derive_the_same_key_from_the_same_info_only():
    alice, bob = private_key(b"a" * 32), private_key(b"b" * 32)
    assert agree(alice, public_bytes(bob), b"x") == agree(bob, public_bytes(alice), b"x")
    assert agree(alice, public_bytes(bob), b"x") != agree(bob, public_bytes(alice), b"y")


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31)])
def test_points_of_low_order_are_refused(point):
    with pytest.raises(Refused, match="unsafe"):
        agree(private_key(b"a" * 32), point, b"")


def test_an_envelope_opens_only_with_its_key_and_unaltered():
    key = derive(b"secret", b"info")
    envelope = seal_shares(key, (b"a" * 33, b"b" * 33))
    assert len(envelope) == ENVELOPE_BYTES
    assert open_shares(key, envelope, "s01") == (b"a" * 33, b"b" * 33)
    altered = [envelope[:i] + bytes([envelope[i] ^ 1]) + envelope[i + 1 :] for i in range(94)]
    for blob in [*altered, envelope[:-1], b"", envelope + b"x"]:
        with pytest.raises(Refused, match="shares of s01: expected an envelope"):
            open_shares(key, blob, "s01")
    with pytest.raises(Refused, match="shares of s01"):
        open_shares(derive(b"secret", b"other"), envelope, "s01")
