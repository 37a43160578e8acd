"""The limits of ``decode``: refused before memory is allocated, and decoded bytes stay below."""

import tracemalloc

import numpy as np
import pytest
from scipy.linalg import hadamard

import fedran
from fedran.core.solve.head import Diagnosis
from fedran.wire.head_codec import head_fits
from helpers.wire.messages import (
    PRECISIONS,
    SMALL,
    Message,
    assert_refused,
    encoded,
    fixture,
    put_stream,
    summary,
)


def test_every_limit_is_checked_and_named():
    blob = encoded()
    assert_refused(blob, "message", fedran.Limits(message=len(blob) - 1))
    assert_refused(blob, "message", fedran.Limits(header=64))
    assert_refused(blob, "message", fedran.Limits(decoded=1000))
    assert_refused(blob, "out_features", fedran.Limits(out_features=15))
    assert_refused(blob, "classes", fedran.Limits(classes=2))
    assert_refused(blob, "classes", fedran.Limits(label_length=2))
    assert fedran.decode(blob, limits=SMALL).rank == 3


@pytest.mark.parametrize("form", ["stack", "gram"])
def test_the_limit_on_decoded_bytes_applies_to_aggregators(form):
    blob = fixture(f"aggregator_{form}")
    need = len(blob) + (16 * 16 * 4 if form == "gram" else 0)
    assert fedran.decode(blob, limits=fedran.Limits(decoded=need)).out_features == 16
    with pytest.raises(fedran.Refused, match="when decoded"):
        fedran.decode(blob, limits=fedran.Limits(decoded=need - 1))


def least_decoded(blob: bytes) -> fedran.Limits:
    """The smallest ``decoded`` limit that lets a message pass."""
    low, high = 0, 2**30
    while high - low > 1:
        middle = (low + high) // 2
        try:
            fedran.decode(blob, limits=fedran.Limits(decoded=middle))
            high = middle
        except fedran.Refused:
            low = middle
    return fedran.Limits(decoded=high)


def coded(level: int, signs: np.ndarray, bits: int) -> bytes:
    """Rows of the codes +-level as a stream before compression."""
    raw = signs.astype(np.int32) * level
    if bits <= 8:
        return raw.astype(np.int8).tobytes()
    planes = [np.packbits(raw >> k & 1, axis=1)[:, None] for k in range(bits - 8)]
    low = np.concatenate(planes, axis=1)  # row by row, then bit by bit
    return (raw >> (bits - 8)).astype(np.int8).tobytes() + low.tobytes()


def compact(bits: int) -> bytes:
    """A legal message that is far smaller than its arrays: Hadamard rows of two codes."""
    M, r = 4096, 64
    data = coded(2 ** (bits - 1) - 1, np.tile(hadamard(r), M // r), bits)
    message = Message.of(encoded())
    message.fields.update(out_features=M, rank=r, classes=[], counts=[])
    message.fields["accounts"].update(n_rows=r, energy=float(r), cut=0.0)
    message.put("sigma", np.ones(r))
    message.put("directions_bits", np.full(r, bits))
    put_stream("directions", data)(message)
    message.put("sums_norm", [])
    message.put("sums_bits", [])
    put_stream("sums", b"")(message)
    return message.bytes()


def plain(precision: str) -> bytes:
    return fedran.encode(summary(n=128, M=2048, rank=64), precision)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda b=b: compact(b) for b in (5, 14)),
        *(lambda p=p: plain(p) for p in PRECISIONS),
    ],
    ids=["compact 5", "compact 14", *PRECISIONS],
)
def test_the_limit_on_decoded_bytes_holds(make):
    blob = make()
    limits = least_decoded(blob)
    fedran.decode(blob, limits=limits)
    tracemalloc.start()
    try:
        fedran.decode(blob, limits=limits)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limits.decoded + 3 * len(blob) + 64 * 1024


def reads(classes, M, limits, landmarks):
    """Whether a head of these classes can be encoded and decoded."""
    diagnosis = Diagnosis("", 1.0, 0.0, 1, 1.0, 1.0, 0.0)
    support = np.random.default_rng(0).random((landmarks, M), np.float32) if landmarks else None
    weights = np.ones((landmarks or M, len(classes)), np.float32)
    head = fedran.Head(weights, tuple(classes), diagnosis, landmarks=support)
    try:
        fedran.decode(fedran.encode(head), fedran.Head, limits=limits)
    except fedran.Refused:
        return False
    return True


@pytest.mark.parametrize(
    "limits",
    [
        fedran.Limits(decoded=40_000),
        fedran.Limits(classes=30),
        fedran.Limits(header=2**16 + 500),
        fedran.Limits(message=2**16 + 8000),
    ],
    ids=["decoded", "classes", "header", "message"],
)
@pytest.mark.parametrize("name", ["{}", "\u00e9" * 40 + "{}"], ids=["short", "long"])
@pytest.mark.parametrize("landmarks", [0, 20])
def test_classes_that_fit_can_be_read(limits, name, landmarks):
    M, found = 48, []
    for count in range(1, 140, 3):
        classes = sorted(name.format(n) for n in range(count))
        found.append(head_fits(classes, M, limits, landmarks))
        assert not found[-1] or reads(classes, M, limits, landmarks)
    assert True in found
    assert False in found
