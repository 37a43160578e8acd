"""The parameters of a feature map. Only features with equal fingerprints may be added."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from fedran.core.errors import Refused, printable

Field: TypeAlias = str | int | float | bool | None

MAX_FIELDS = 32
MAX_TEXT = 256
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, repr=False)
class Fingerprint:
    """Named parameters of a feature map, and the hash over them.

    It holds parameters (backbone, hash of the weights, preprocessing, sizes, seed), never the
    matrices themselves.

    >>> a = Fingerprint.of(d=64, M=1024, seed=0)
    >>> b = Fingerprint.of(d=64, M=2048, seed=0)
    >>> a.differences(b)
    'M is 1024 here and 2048 there'
    """

    fields: Mapping[str, Field]

    def __post_init__(self) -> None:
        if not isinstance(self.fields, Mapping):
            got = type(self.fields).__name__
            raise TypeError(f"fields of a fingerprint must be a mapping, got {got}")
        if not 0 < len(self.fields) <= MAX_FIELDS:
            raise Refused("fingerprint", f"1 to {MAX_FIELDS} fields", len(self.fields))
        for name, value in self.fields.items():
            _check_field(name, value)
        object.__setattr__(
            self, "fields", MappingProxyType({k: self.fields[k] for k in sorted(self.fields)})
        )

    @classmethod
    def of(cls, **fields: Field) -> Fingerprint:
        """A fingerprint of the given fields."""
        return cls(fields)

    @property
    def hash(self) -> str:
        """SHA-256 over the fields as canonical JSON, in hex."""
        text = json.dumps(dict(self.fields), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def differences(self, other: Fingerprint) -> str:
        """The fields that differ, as one phrase; empty when none do."""
        mine, theirs = ({k: json.dumps(v) for k, v in f.fields.items()} for f in (self, other))
        return ", ".join(
            f"{k} is {printable(mine.get(k, 'absent'), 60)} here and "
            f"{printable(theirs.get(k, 'absent'), 60)} there"
            for k in sorted({*mine, *theirs})
            if mine.get(k) != theirs.get(k)  # as text: 1 == True == 1.0 in Python, not in a hash
        )

    def __repr__(self) -> str:
        inner = ", ".join(f"{k}={v!r}" for k, v in self.fields.items())
        return f"Fingerprint({inner})"

    def __hash__(self) -> int:
        return hash(self.hash)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fingerprint) and self.hash == other.hash

    def __reduce__(self) -> tuple[type[Fingerprint], tuple[dict[str, Field]]]:
        return Fingerprint, (dict(self.fields),)


def require_scaler(head: Fingerprint | None, scaler: str | None) -> None:
    """Refuse a head of scaled rows without the fingerprint of its scaler, or with another one."""
    needed = head.fields.get("scaler") if head else None
    if needed == scaler:
        return
    if scaler is None:
        raise Refused("head", "the scaler that its rows were scaled with", "none")
    if needed is None:
        raise Refused("head", "no scaler, because it was fitted without one", "a scaler")
    raise Refused("scaler", f"that of the head, {str(needed)[:12]}", scaler[:12])


def columns_hash(columns: Sequence[str]) -> str:
    """What a fingerprint holds of the names of feature columns and their order, in its `columns`.

    >>> columns_hash(["age", "dose"]) == columns_hash(["dose", "age"])
    False
    """
    return hashlib.sha256(json.dumps(list(columns)).encode()).hexdigest()


def require_columns(
    head: Fingerprint | None, columns: Sequence[str], field: str, hint: str = ""
) -> None:
    """Refuse columns that have names, other than those of the head's fingerprint in their order."""
    needed = head.fields.get("columns") if head is not None else None
    if columns and needed not in (None, columns_hash(columns)):
        got = f"others, or another order, from {printable(columns[0], 60)!r}"
        raise Refused(field, "the columns of the head in their order", got, hint)


def _check_field(name: object, value: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Refused("fingerprint", "field names of 1 to 64 letters, digits, '_', '.', '-'", name)
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise Refused(f"fingerprint.{name}", f"at most {MAX_TEXT} characters", len(value))
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Refused(f"fingerprint.{name}", "a finite number", value)
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise Refused(f"fingerprint.{name}", "an integer within 64 bits", "a larger one")
    elif value is not None:
        raise Refused(f"fingerprint.{name}", "text, a number, true, false or null", value)


def check_fingerprint(value: object, or_none: bool = True) -> None:
    """TypeError unless ``value`` is a Fingerprint or None."""
    if not isinstance(value, Fingerprint) and not (or_none and value is None):
        raise TypeError(
            f"fingerprint must be a Fingerprint, got {type(value).__name__}; pass phi.fingerprint"
        )


def require_same(mine: Fingerprint | None, theirs: Fingerprint | None, what: str) -> None:
    """Refuse two feature maps that differ, naming the fields.

    A fingerprint on one side only is refused too, because then nobody knows whether both sides
    use the same features.
    """
    if mine == theirs:
        return
    if mine is None or theirs is None:
        side = "the other has none" if theirs is None else "this one has none"
        raise Refused(
            "fingerprint",
            f"{what} to carry the same fingerprint",
            f"one where {side}",
            hint="pass fingerprint=phi.fingerprint to condense or summarize",
        )
    raise Refused(
        "fingerprint",
        f"{what} to mean the same features",
        mine.differences(theirs),
        hint="use the same backbone, preprocessing and feature map everywhere",
    )
