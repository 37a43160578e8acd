"""What the settings of methods must be, by name, in every method that has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from fedran.core.errors import nearest
from fedran.wire.quantisation import MAX_BITS, MIN_BITS
from fedran.wire.summary_codec import PRECISIONS

RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "out_features": (lambda v: v >= 1, "at least 1"),
    "rank": (lambda v: v >= 1, "at least 1"),
    "dummies": (lambda v: v >= 1, "at least 1"),
    "lam": (lambda v: v is None or 0 < v < math.inf, "positive and finite"),
    "gamma": (lambda v: 0 < v < math.inf, "positive and finite"),
    "tau": (lambda v: -1 <= v <= 1, "a cosine, in -1 .. 1"),
    "margin": (lambda v: 0 <= v < math.inf, "finite and at least 0"),
    "bits": (lambda v: MIN_BITS <= v <= MAX_BITS, f"in {MIN_BITS} .. {MAX_BITS}"),
    "precision": (lambda v: v in PRECISIONS, f"one of {', '.join(PRECISIONS)}"),
    "n_rounds": (lambda v: v >= 1, "at least 1"),
    "epochs": (lambda v: v >= 1, "at least 1"),
    "batch": (lambda v: v >= 2, "at least 2"),
    "lr": (lambda v: 0 < v < math.inf, "positive and finite"),
    "momentum": (lambda v: 0 <= v < 1, "in 0 .. 1, 1 excluded"),
    "weight_decay": (lambda v: 0 <= v < math.inf, "finite and at least 0"),
    "participation": (lambda v: 0 < v <= 1, "a share, above 0 and at most 1"),
    "image_size": (lambda v: v is None or (v >= 8 and v % 4 == 0), "a multiple of 4 from 8 on"),
    "memory_size": (lambda v: v >= 1, "at least 1"),
    "strength": (lambda v: 0 <= v < math.inf, "finite and at least 0"),
    "temperature": (lambda v: 0 < v < math.inf, "positive and finite"),
    "synthesis_rounds": (lambda v: v is None or v >= 1, "at least 1"),
    "warmup": (lambda v: v >= 0, "at least 0"),
    "generator_steps": (lambda v: v >= 1, "at least 1"),
    "distillation_steps": (lambda v: v >= 0, "at least 0"),
    "synthetic_batch": (lambda v: v >= 2, "at least 2"),
}
"""What settings of these names must be, in every method that has them."""


def check_settings(params: Mapping[str, Any]) -> None:
    """Refuse a setting that breaks its rule."""
    for name, value in params.items():
        fits, what = RULES.get(name, (lambda _: True, ""))
        if not fits(value):
            close = nearest(value, PRECISIONS) if name == "precision" else ""
            raise ValueError(f"{name} must be {what}, got {value!r}{close}")
