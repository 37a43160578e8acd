"""The activation GELU(x) = x Phi(x) = x (1 + erf(x / sqrt 2)) / 2, exact to float32 rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedran.core._linalg.arrays import Array, Float32, is_numpy_array, namespace

# Phi(x) - 1/2 = x p(x^2) / q(x^2) with an error below 1e-8 up to |x| = 5.4, where Phi is 1 to
# float32 rounding. Beyond that the fraction exceeds 1/2 and is cut there. SciPy's erf takes three
# times as long as this fraction, which is all additions and multiplications of whole blocks.
_P = np.array(
    [
        0.39894217662314475,
        0.03426394458039224,
        0.004707458471374725,
        0.0001736995557987714,
        6.4490076690249375e-06,
        2.282550423452304e-08,
    ],
    dtype=np.float32,
)
_Q = np.array(
    [
        1.0,
        0.2525521531696069,
        0.028894331458572047,
        0.0019116063310871947,
        7.554673269655016e-05,
        1.2068936305605226e-06,
    ],
    dtype=np.float32,
)
_SATURATED = 6.0
_BLOCK = 2**15
"""Values at a time, so that four temporary blocks stay in the cache of a core."""


def gelu(H: Float32[Array, "n M"]) -> None:
    """Replace a contiguous H by GELU(H), in place.

    The NumPy form errs by at most 3e-7 max(1, |x|), as torch does.
    """
    if is_numpy_array(H):
        _gelu_in_blocks(H.reshape(-1))
        return
    phi = namespace(H).erf(H * 0.5**0.5)
    phi += 1
    phi *= 0.5  # before the product, which would overflow for the largest H
    H *= phi


def _gelu_in_blocks(values: Float32[NDArray[Any], " n"]) -> None:
    work = np.empty((4, min(_BLOCK, len(values))), dtype=np.float32)
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        x, square, p, q = work[:, : len(block)]
        np.clip(block, -_SATURATED, _SATURATED, out=x)
        np.multiply(x, x, out=square)
        for coefficients, value in ((_P, p), (_Q, q)):  # Horner's rule, the constant comes first
            value[:] = coefficients[-1]
            for coefficient in coefficients[-2::-1]:
                value *= square
                value += coefficient
        p *= x
        p /= q
        np.clip(p, -0.5, 0.5, out=p)
        p += 0.5
        block *= p
