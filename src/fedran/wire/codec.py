"""``encode`` and ``decode``: objects to bytes and back, for every kind of message."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar, overload

from fedran.core.errors import Refused, positive_integer
from fedran.core.points import Points
from fedran.core.solve.head import Head
from fedran.core.summary import Summary
from fedran.core.sums.aggregator import Aggregator, Message
from fedran.wire.aggregator_codec import decode_aggregator, encode_aggregator
from fedran.wire.container import Container, unpack
from fedran.wire.head_codec import decode_head, encode_head
from fedran.wire.points_codec import DEFAULT_STEP, check_step, decode_points, encode_points
from fedran.wire.summary_codec import check_precision, decode_summary, encode_summary
from fedran.wire.validation import DEFAULT_LIMITS, FILE_LIMITS, Limits

DEFAULT_BITS = 5.0
Encodable: TypeAlias = Points | Summary | Head | Aggregator
Kind = TypeVar("Kind", Points, Summary, Head, Aggregator)
KINDS = (Points, Summary, Head, Aggregator)
"""Each is called so in the header of a message, in small letters."""
READERS: dict[str, Callable[[Container, Limits], Points | Summary | Head]] = {
    "points": decode_points,
    "summary": decode_summary,
    "head": decode_head,
}


def encode(
    obj: Encodable,
    precision: str | None = None,
    *,
    bits: float = DEFAULT_BITS,
    step: float = DEFAULT_STEP,
    max_bytes: int | None = None,
) -> bytes:
    """Convert points, a summary, a head or an aggregator to bytes.

    The same object gives the same bytes. The layout is a safetensors file; see
    docs/reference/wire-format.md.

    Parameters
    ----------
    obj:
        A ``Points``, a ``Summary``, a ``Head`` or an ``Aggregator``.
    precision:
        Of a summary: ``"mixed"`` (default), ``"float32"`` or ``"float64"``. ``"mixed"`` gives
        larger singular values more bits and compresses the result. A linear head is stored in
        float16 with one scale per class, a kernel head and an aggregator exactly.
    bits:
        Average bits per value of a summary in ``"mixed"``.
    step:
        Of points: how coarsely columns are rounded, in deviations of the rows from their class
        means. 2 saves a third of the bytes and costs half a point of accuracy.
    max_bytes:
        Points or a summary that take more are refused with a ValueError. ``fedran.plan`` says what
        fits.

    Notes
    -----
    Errors from rounding are added to the accounts of a summary (``eps_G``, ``eps_B``) and to the
    bound ``eps_W`` of a head.

    Examples
    --------
    >>> import numpy as np, fedran
    >>> s = fedran.summarize(np.random.default_rng(0).random((50, 64)), [0] * 50, rank=8)
    >>> fedran.decode(fedran.encode(s)).rank
    8
    """
    if max_bytes is not None:
        positive_integer(max_bytes, "max_bytes", or_none=" or None")
    if isinstance(obj, Summary):
        blob = encode_summary(obj, check_precision(precision or "mixed", bits), bits)
        what = f"a summary of rank {obj.rank} takes"
        smaller = "summarize the rows again with a smaller rank"
    elif precision is not None:
        raise ValueError(f"precision is for summaries: leave out precision={precision!r}")
    elif isinstance(obj, Points):
        blob = encode_points(obj, check_step(step))
        what = f"{len(obj.counts)} points of {obj.in_features} features take"
        smaller = "condense the rows again with a larger group_size, or encode with a larger step"
    elif not isinstance(obj, (Head, Aggregator)):
        fitted = hasattr(type(obj), "head_")
        hint = "; pass its head_ (joblib saves the whole estimator)" if fitted else ""
        raise TypeError(
            "encode and save expect a Points, a Summary, a Head or an Aggregator, "
            f"got {type(obj).__name__}{hint}"
        )
    elif max_bytes is not None:
        raise ValueError("max_bytes applies to points and summaries only")
    else:
        return encode_head(obj) if isinstance(obj, Head) else encode_aggregator(obj)
    if max_bytes is not None and len(blob) > max_bytes:
        raise ValueError(f"max_bytes={max_bytes} is too small: {what} {len(blob)} bytes; {smaller}")
    return blob


@overload
def decode(
    blob: bytes, kind: None = ..., *, limits: Limits | None = ..., device: str | None = ...
) -> Encodable: ...
@overload
def decode(
    blob: bytes, kind: type[Kind], *, limits: Limits | None = ..., device: str | None = ...
) -> Kind: ...
def decode(
    blob: bytes,
    kind: type | None = None,
    *,
    limits: Limits | None = None,
    device: str | None = None,
) -> Encodable:
    """Convert bytes back to points, a summary, a head or an aggregator.

    The bytes may come from anyone: nothing in them is executed or trusted. Sizes are checked
    before memory is allocated, then the checksum, types and shapes, and that the numbers can
    describe real rows.

    Parameters
    ----------
    blob:
        The bytes that ``encode`` returned.
    kind:
        ``Points``, ``Summary``, ``Head`` or ``Aggregator``: the only class to accept. By default
        the class follows from the message. A server that expects points should pass ``Points``.
    limits:
        Largest accepted sizes. The default is ``Limits()``, or no practical limit for
        ``kind=Aggregator``, which is a server's own state.
    device:
        A torch device for the arrays, such as ``"cuda"``. By default they are NumPy arrays.

    Raises
    ------
    Refused
        If the message is damaged, too large, of another kind or inconsistent.

    Examples
    --------
    >>> import fedran
    >>> fedran.decode(b"hello, world")
    Traceback (most recent call last):
    ...
    fedran.core.errors.Refused: message: expected a fedran file, got another kind of file, or a \
damaged one
    """
    check_options(kind, limits)
    if limits is None:
        limits = FILE_LIMITS if kind is Aggregator else DEFAULT_LIMITS
    return decode_container(unpack(blob, limits), kind, limits, device)


def check_options(kind: type | None, limits: Limits | None) -> None:
    """TypeError unless ``kind`` is a class that a message can hold, and ``limits`` are Limits."""
    if kind is not None and kind not in KINDS:
        raise TypeError(f"kind must be Points, Summary, Head or Aggregator, got {kind!r}")
    if limits is not None and not isinstance(limits, Limits):
        got = type(limits).__name__
        raise TypeError(f"limits must be Limits, such as Limits(message=2**20), got {got}")


def decode_container(
    message: Container, kind: type | None, limits: Limits, device: str | None
) -> Encodable:
    """The object in a verified container, refused unless it is of the given kind."""
    if kind is not None:
        message.of_kind(kind.__name__.lower())
    if message.kind == "aggregator":
        return decode_aggregator(message, limits, device)
    if message.kind not in READERS:
        raise Refused("kind", "points, summary, head or aggregator", message.kind)
    found = READERS[message.kind](message, limits)
    return found if device is None else found.to(device)


def decode_message(upload: Container, limits: Limits) -> Message:
    """What a site sends, from a verified container."""
    found = decode_container(upload, None, limits, None)
    if not isinstance(found, (Points, Summary)):
        raise Refused("upload", "points or a summary", type(found).__name__)
    return found
