"""Checks on messages from outside: the largest accepted sizes, and header fields with types.

Every check that fails raises ``Refused``.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import numpy as np

from fedran.core.errors import Refused, positive_integer
from fedran.core.fingerprint import Fingerprint
from fedran.core.labels import Label, canonical, sort_key
from fedran.core.solve.calibration import BINS, TEMPERATURES, Calibration
from fedran.core.sums.accounts import Accounts

Choice = TypeVar("Choice", bound=str)
_INT64_MAX = 2**63 - 1
MAX_ROWS, MAX_ENERGY = 2**40, 1e100
"""Largest accounts of one message, so that no sum over messages can overflow."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest messages that ``fedran.decode`` accepts, checked before memory is allocated.

    Raise the limits for larger models, lower them for a small server. Decoding takes at most
    ``decoded`` bytes, plus up to three copies of the message, plus up to 25 times its header while
    the JSON is parsed.
    """

    message: int = 2**28
    """Bytes of the whole message."""
    header: int = 2**21
    """Bytes of its JSON header."""
    decoded: int = 2**30
    """Bytes of all arrays that decoding allocates."""
    out_features: int = 2**17
    classes: int = 20_000
    points: int = 1_000_000
    """Points of one message."""
    label_length: int = 256
    """Characters of one string label."""

    def __post_init__(self) -> None:
        for field in fields(self):
            positive_integer(getattr(self, field.name), field.name)


DEFAULT_LIMITS = Limits()
FILE_LIMITS = Limits(message=2**40, header=2**28, decoded=2**40, classes=10**7)
"""For a server's own files, which are as large as its state."""


@dataclass(frozen=True)
class Header:
    """A JSON object from outside. ``path`` is its position in the message, for error messages."""

    fields: dict[str, Any]
    path: str = ""

    @classmethod
    def parse(cls, text: str | bytes) -> Header:
        """Parse JSON text. NaN and infinity are refused."""
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as reason:
            raise Refused(
                "header", "a JSON object of finite numbers", str(reason) or "nesting too deep"
            ) from None
        if not isinstance(value, dict):
            raise Refused("header", "a JSON object", value)
        return cls(value)

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str) -> Any:
        """The value of a required field."""
        if key not in self.fields:
            raise Refused(self._name(key), "a value", "none")
        return self.fields[key]

    def integer(self, key: str, low: int = 0, high: int = _INT64_MAX) -> int:
        """An integer in low .. high."""
        return _integer(self.get(key), self._name(key), low, high)

    def number(self, key: str, high: float = sys.float_info.max, low: float = 0.0) -> float:
        """A finite number in low .. high."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Refused(self._name(key), "a number", value)
        if isinstance(value, int) and abs(value) > _INT64_MAX:
            raise Refused(self._name(key), "a number within 64 bits", "a larger integer")
        if not math.isfinite(value) or value < low:
            raise Refused(self._name(key), f"a finite number, at least {low:g}", value)
        if value > high:
            raise Refused(self._name(key), f"at most {high:g}", value)
        return float(value)

    def text(self, key: str, longest: int = 256) -> str:
        """A string of at most ``longest`` characters."""
        value = self.get(key)
        if not isinstance(value, str) or len(value) > longest:
            got = f"{len(value)} characters" if isinstance(value, str) else value
            raise Refused(self._name(key), f"text of at most {longest} characters", got)
        return value

    def one_of(self, key: str, *choices: Choice) -> Choice:
        """One of the given strings."""
        value = self.text(key, 32)
        for choice in choices:
            if choice == value:
                return choice
        raise Refused(self._name(key), f"one of {', '.join(choices)}", value)

    def items(self, key: str, longest: int) -> list[Any]:
        """A list of at most ``longest`` items."""
        value = self.get(key)
        if not isinstance(value, list):
            raise Refused(self._name(key), "a list", value)
        if len(value) > longest:
            raise Refused(self._name(key), f"at most {longest} items", len(value))
        return value

    def _all_items(self, key: str, length: int) -> list[Any]:
        values = self.items(key, length)
        if len(values) != length:
            raise Refused(self._name(key), f"{length} numbers", len(values))
        return values

    def integers(self, key: str, length: int, low: int = 0, high: int = _INT64_MAX) -> list[int]:
        """A list of ``length`` integers in low .. high."""
        return [_integer(v, self._name(key), low, high) for v in self._all_items(key, length)]

    def numbers(self, key: str, length: int, high: float = sys.float_info.max) -> list[float]:
        """A list of ``length`` finite numbers in 0 .. high."""
        values = self._all_items(key, length)
        return [Header({key: v}, self.path).number(key, high) for v in values]

    def section(self, key: str) -> Header:
        """A nested object."""
        value = self.get(key)
        if not isinstance(value, dict):
            raise Refused(self._name(key), "an object", value)
        return Header(value, self._name(key))

    def labels(self, key: str, limits: Limits) -> tuple[Label, ...]:
        """Distinct int or str labels in canonical order."""
        labels = self.items(key, limits.classes)
        for label in labels:
            if not isinstance(label, str):
                _integer(label, self._name(key), -_INT64_MAX - 1, _INT64_MAX)
                continue
            if len(label) > limits.label_length:
                expected = f"labels of at most {limits.label_length} characters"
                raise Refused(self._name(key), expected, f"one of {len(label)}")
            try:
                canonical(label)
            except ValueError as reason:
                raise Refused(self._name(key), "labels that are valid text", str(reason)) from None
        if labels != sorted(set(labels), key=sort_key):
            raise Refused(self._name(key), "distinct labels, ints before strs, sorted", labels)
        return tuple(labels)

    def fingerprint(self, key: str) -> Fingerprint | None:
        """A fingerprint, or null."""
        return None if self.get(key) is None else Fingerprint(self.section(key).fields)

    def accounts(self, key: str, totals: bool = False) -> Accounts:
        """Accounts: all fields present, no others, finite and at least 0.

        The accounts of one message have ceilings. ``totals`` over many messages may exceed them.
        """
        section = self.section(key)
        rows, energy = (10**30, sys.float_info.max) if totals else (MAX_ROWS, MAX_ENERGY)
        known = {f.name for f in fields(Accounts)} - {"weight_excess"}
        extra = sorted(section.fields.keys() - known)
        if extra:
            raise Refused(section.path, "only known accounts", ", ".join(extra))
        values: dict[str, Any] = {
            name: section.integer(name, 0, rows)
            if name in ("n_rows", "parts", "merges")
            else section.number(name, energy)
            for name in known
        }
        return Accounts(**values)

    def calibration(self, key: str) -> Calibration | None:
        """Losses and histogram of scores; None if the field is missing."""
        if key not in self.fields:
            return None
        section = self.section(key)
        losses = section.numbers("losses", len(TEMPERATURES), MAX_ENERGY)
        gaps = section.numbers("gaps", BINS, MAX_ROWS)
        compared = section.number("compared", MAX_ENERGY)
        return Calibration(np.array(losses), np.array(gaps), compared).validate(math.inf)


def plain_accounts(accounts: Accounts) -> dict[str, Any]:
    """The fields of accounts for a header, where every row counts once."""
    return {k: v for k, v in asdict(accounts).items() if k != "weight_excess"}


def plain_calibration(calibration: Calibration) -> dict[str, Any]:
    """A calibration for a header, with whole numbers as integers, which are shorter."""
    *gaps, compared = (
        int(v) if v.is_integer() else v
        for v in [*calibration.histogram.tolist(), calibration.compared]
    )
    return {"losses": calibration.losses.tolist(), "gaps": gaps, "compared": compared}


def _integer(value: object, name: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(name, "an integer", value)
    if not low <= value <= high:
        raise Refused(name, f"an integer from {low} to {high}", value)
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a finite number")
