"""Shamir's secret sharing over the smallest prime above 2^256."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran.core.errors import Refused
from fedran.federation.secure.masking.ciphers import PRIME, SHARE_BYTES, combine, split


def is_probably_prime(n: int) -> bool:
    """Miller and Rabin's test with 40 fixed bases."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        x = pow(base, odd, n)
        if x not in (1, n - 1) and not any(pow(x, 2**k, n) == n - 1 for k in range(1, twos)):
            return False
    return True


def test_the_modulus_is_the_smallest_prime_that_holds_every_secret():
    assert [n for n in range(2**256, PRIME + 1) if is_probably_prime(n)] == [PRIME]


@given(
    st.binary(min_size=32, max_size=32),
    st.integers(1, 130).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_any_threshold_of_the_shares_gives_the_secret(secret, sizes, rng):
    count, threshold = sizes
    shares = dict(enumerate(split(secret, count, threshold), 1))
    chosen = rng.sample(sorted(shares), rng.randint(threshold, count))
    assert combine({point: shares[point] for point in chosen}) == secret


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_extreme_secrets_survive(secret):
    shares = split(secret, 5, 3)
    assert combine({1: shares[0], 3: shares[2], 5: shares[4]}) == secret


def test_shares_are_values_of_a_polynomial_whose_constant_is_the_secret():
    rng = random.Random(0)
    drawn = [rng.randbytes(48) for _ in range(2)]
    a, b = (int.from_bytes(r, "big") % PRIME for r in drawn)
    source = iter(drawn)
    shares = split(b"s" * 32, 4, 3, lambda n: next(source))
    for x, share in enumerate(shares, 1):
        value = (a * x * x + b * x + int.from_bytes(b"s" * 32, "big")) % PRIME
        assert share == value.to_bytes(SHARE_BYTES, "big")


def test_fewer_shares_fit_every_secret():
    """For each other secret there is one polynomial of the same degree with the same shares."""
    shares = split(b"s" * 32, 5, 3)
    known = {2: int.from_bytes(shares[1], "big"), 4: int.from_bytes(shares[3], "big")}
    for other in (0, 1, 2**256 - 1):
        points = {0: other, **known}
        third = sum(y * _basis(x, points, at=1) for x, y in points.items()) % PRIME
        forged = {1: third.to_bytes(SHARE_BYTES, "big"), 2: shares[1], 4: shares[3]}
        assert combine(forged) == other.to_bytes(32, "big")


def _basis(x, points, at):
    weight = Fraction(1)
    for other in points:
        if other != x:
            weight *= Fraction(at - other, x - other)
    return weight.numerator * pow(weight.denominator, -1, PRIME)


def test_shares_of_one_secret_are_fresh_every_time():
    first, second = split(b"s" * 32, 3, 2), split(b"s" * 32, 3, 2)
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_too_few_or_altered_shares_do_not_give_the_secret():
    shares = dict(enumerate(split(b"s" * 32, 5, 4, random.Random(0).randbytes), 1))
    for chosen in itertools.combinations(shares, 3):
        assert combine({p: shares[p] for p in chosen}) != b"s" * 32
    altered = {**shares, 2: (int.from_bytes(shares[2], "big") ^ 1).to_bytes(SHARE_BYTES, "big")}
    assert combine(altered) != b"s" * 32


def test_a_value_that_is_no_secret_is_refused():
    with pytest.raises(Refused, match="shares that do not agree"):
        combine({1: (2**256 + 5).to_bytes(SHARE_BYTES, "big")})


@pytest.mark.parametrize("share", [b"", bytes(32), bytes(34), PRIME.to_bytes(33, "big")])
def test_bytes_that_are_no_share_are_refused(share):
    with pytest.raises(Refused, match="share: expected 33 bytes below the prime"):
        combine({1: share})


def test_wrong_arguments_are_errors():
    with pytest.raises(ValueError, match="a secret has 32 bytes, got 16"):
        split(bytes(16), 3, 2)
    with pytest.raises(ValueError, match="threshold"):
        split(bytes(32), 3, 4)
    with pytest.raises(ValueError, match="points from 1"):
        combine({0: bytes(33)})
