"""Exact discrete Gaussian noise from random bytes of the operating system."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Int64

RandomBytes = Callable[[int], bytes]
"""A source of random bytes. Outside of benchmarks and tests: the operating system's generator."""

LARGEST_VARIANCE = 2**56
"""So that the products of the sampler fit into 64 bits."""


def discrete_gaussian(
    shape: int | tuple[int, ...], variance: int, random: RandomBytes = secrets.token_bytes
) -> Int64[NDArray[Any], ...]:
    """Independent integers k with probability proportional to exp(-k^2 / (2 variance)), exactly.

    The rejection sampler of Canonne, Kamath and Steinke (2020) on uniform integers of ``random``.
    A comparison of a uniform number with a probability is decided in float64 only where rounding
    cannot change it, otherwise (about once in 10^12) by decimal numbers of as many digits as it
    takes. The running time depends on the values drawn.
    """
    if isinstance(variance, bool) or not 1 <= variance <= LARGEST_VARIANCE:
        raise ValueError(f"variance must be an integer in 1 .. 2**56, got {variance!r}")
    v = int(variance)
    t = math.isqrt(v) + 1
    wanted = math.prod(shape) if isinstance(shape, tuple) else shape
    found = np.empty(wanted, dtype=np.int64)
    filled = 0
    while filled < wanted:
        n = 2 * (wanted - filled) + 16
        # |Y| = low + t * high is geometric with parameter exp(-1 / t); -0 is dropped.
        low = _uniform(n, t, random)
        low = low[_accepted(low, 1, t, random)]
        high = _unit_geometric(len(low), random)
        size = low + t * high
        negative = (np.frombuffer(random(len(size)), dtype=np.uint8) & 1).astype(bool)
        size, negative = size[(size > 0) | ~negative], negative[(size > 0) | ~negative]
        # exp(-(|Y| - v / t)^2 / (2 v)) = exp(-(t |Y| - v)^2 / (2 v t^2))
        kept = _accepted(size * t - v, 2, 2 * v * t * t, random)
        values = np.where(negative, -size, size)[kept][: wanted - filled]
        found[filled : filled + len(values)] = values
        filled += len(values)
    return found.reshape(shape)


def _uniform(n: int, below: int, random: RandomBytes) -> Int64[NDArray[Any], " n"]:
    """n uniform integers in 0 .. below - 1, exactly."""
    words = np.frombuffer(random(8 * n), dtype=np.uint64)
    largest = np.uint64(2**64 - 2**64 % below - 1)
    while np.any(words > largest):
        again = words > largest
        words = words.copy()
        words[again] = np.frombuffer(random(8 * int(again.sum())), dtype=np.uint64)
    return (words % np.uint64(below)).astype(np.int64)


def _unit_geometric(n: int, random: RandomBytes) -> Int64[NDArray[Any], " n"]:
    """n numbers of successes before the first failure of trials with probability exp(-1)."""
    count = np.zeros(n, dtype=np.int64)
    running = np.arange(n)
    while len(running):
        running = running[_accepted(np.ones(len(running), dtype=np.int64), 1, 1, random)]
        count[running] += 1
    return count


UNDECIDED = 2.0**-40
"""Float64 decides comparisons of numbers in [0, 1] that are further apart than this."""


def _accepted(
    base: Int64[NDArray[Any], " n"], power: int, divisor: int, random: RandomBytes
) -> NDArray[np.bool_]:
    """True with probability exp(-base^power / divisor), exactly."""
    words = np.frombuffer(random(8 * len(base)), dtype=np.uint64)
    ratio = (base / math.sqrt(divisor)) ** 2 if power == 2 else base / divisor
    gap = np.exp(-ratio) - words * 2.0**-64
    result = gap > 0
    for i in np.flatnonzero(np.abs(gap) < UNDECIDED):
        result[i] = _accepted_exactly(int(base[i]) ** power, divisor, int(words[i]), random)
    return result


def _accepted_exactly(numerator: int, divisor: int, word: int, random: RandomBytes) -> bool:
    """Whether a uniform number whose first 64 bits are ``word`` is below exp(-ratio)."""
    bits, uniform = 64, word
    while True:
        bits, uniform = bits + 64, (uniform << 64) + int.from_bytes(random(8), "little")
        with localcontext(prec=bits // 2) as context:
            context.Emin = -(10**9)
            low = Decimal(uniform) / Decimal(2**bits)
            p = (-Decimal(numerator) / Decimal(divisor)).exp()
            # The bits not drawn yet, and 1 % of slack in the digits for the three roundings.
            slack = Decimal(2) ** (1 - bits) + Decimal(10) ** (5 - context.prec)
            if low > p + slack:
                return False
            if low < p - slack:
                return True
