"""``encode`` and ``decode``: the two functions that stand between objects and bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import cast, overload

from fedran.core.errors import Refused
from fedran.core.head import Head
from fedran.core.summary import Summary
from fedran.wire.container import Container, unpack
from fedran.wire.head_codec import HeadPrecision, decode_head, encode_head
from fedran.wire.limits import DEFAULT_LIMITS, Limits
from fedran.wire.summary_codec import Precision, check_precision, decode_summary, encode_summary

DEFAULT_BITS = 5.0


def encode(
    thing: Summary | Head,
    precision: str | None = None,
    *,
    bits: float = DEFAULT_BITS,
    max_bytes: int | None = None,
) -> bytes:
    """A summary or a head as bytes (safetensors; see docs/reference/wire-format.md).

    ``precision`` of a summary: ``"mixed"`` (the default: ``bits`` a number on average, more for
    large singular values, entropy-coded), ``"int8"``, ``"float16"``, ``"float32"`` or
    ``"float64"``. Of a head: ``"float16"`` with a scale per class (the default), ``"float32"``
    or ``"float64"``. With ``max_bytes`` a summary that comes out larger is truncated until it
    fits. Rounding and truncation go into the accounts (``eps_G``, ``eps_B``) that travel
    along. The same object gives the same bytes.

    >>> import numpy as np, fedran
    >>> s = fedran.summarize(np.random.default_rng(0).random((50, 64)), [0] * 50, rank=8)
    >>> fedran.decode(fedran.encode(s)).rank
    8
    """
    if isinstance(thing, Summary):
        checked = check_precision(precision or "mixed", bits)
        blob = encode_summary(thing, checked, bits)
        return blob if max_bytes is None else _shrink(thing, blob, max_bytes, checked, bits)
    if isinstance(thing, Head):
        return encode_head(thing, cast(HeadPrecision, precision or "float16"))
    hint = "; it has a save of its own" if hasattr(thing, "save") else ""
    raise TypeError(f"encode takes a Summary or a Head, got {type(thing).__name__}{hint}")


def _shrink(s: Summary, blob: bytes, max_bytes: int, precision: Precision, bits: float) -> bytes:
    """Fewer columns until the message fits: every step aims a little below the budget."""
    if len(blob) <= max_bytes:
        return blob
    bare = len(encode_summary(_fewer_columns(s, 1), precision, bits)) if s.rank else len(blob)
    while len(blob) > max_bytes and s.rank > 1:
        share = max(0.0, (max_bytes - bare) / max(len(blob) - bare, 1))
        s = _fewer_columns(s, max(1, min(s.rank - 1, int(0.98 * share * s.rank))))
        blob = encode_summary(s, precision, bits)
    if len(blob) > max_bytes:
        raise ValueError(
            f"max_bytes={max_bytes} does not hold {len(s.classes)} class sums and one column of "
            f"{s.out_features} features: that takes {len(blob)} bytes"
        )
    return blob


def _fewer_columns(s: Summary, rank: int) -> Summary:
    """Truncated by the client itself: a local cut in the accounts, not a merge."""
    cut = s.truncate(rank)
    local = replace(
        cut.accounts,
        eta_loc=max(s.accounts.eta_loc, cut.accounts.cut_fraction),
        eta_merge=s.accounts.eta_merge,
        merges=s.accounts.merges,
    )
    return replace(cut, accounts=local)


@overload
def decode(blob: bytes, kind: type[Summary] = ..., *, limits: Limits = ...) -> Summary: ...
@overload
def decode(blob: bytes, kind: type[Head], *, limits: Limits = ...) -> Head: ...
def decode(
    blob: bytes, kind: type[Summary] | type[Head] = Summary, *, limits: Limits = DEFAULT_LIMITS
) -> Summary | Head:
    """The summary (or, with ``kind=Head``, the head) in a message from anyone.

    Nothing in it is executed or trusted: sizes are checked before allocation, then the
    checksum, types, shapes, and that the numbers can describe real rows. Everything that is
    not accepted raises ``fedran.Refused``, one sentence that names the field.

    >>> import fedran
    >>> fedran.decode(b"hello, world")
    Traceback (most recent call last):
    ...
    fedran.core.errors.Refused: message: expected a header of at most 4 bytes, got \
8583909746840200552; no fedran file, or damaged
    """
    if kind not in (Summary, Head):
        raise TypeError(f"decode makes a Summary or a Head, got kind={kind!r}")
    message = unpack(blob, limits)
    wanted = "summary" if kind is Summary else "head"
    hint = {"head": "pass kind=fedran.Head", "aggregator": "use Aggregator.load"}
    return decode_container(message.of_kind(wanted, hint.get(message.kind, "")), limits)


def decode_container(message: Container, limits: Limits) -> Summary | Head:
    """The summary or head in a verified container."""
    if message.kind == "summary":
        return decode_summary(message, limits)
    if message.kind == "head":
        return decode_head(message, limits)
    raise Refused("kind", "summary or head", message.kind, hint="Aggregator.load reads aggregators")
