"""Messages built by hand from the documented layout, for tests that read and tests that attack.

A message is: 8 bytes, the header's length, little endian; a JSON object padded with spaces to a
multiple of 8; the tensors. ``__metadata__`` holds the fields as JSON text and a checksum.
``Message`` uses nothing of fedran.wire, so it checks the layout and can write what the encoder
never writes.
"""

import base64
import hashlib
import json
import struct
import textwrap
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedran

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I8": "i1", "U8": "u1"}
NAN, INF = float("nan"), float("inf")
NOT_NUMBERS = [None, True, "1", [], {}, [1.0]]
PRECISIONS = ("float64", "float32", "mixed")
CENTERS = ("class", None)
SMALL = fedran.Limits(
    message=2**20, header=16 * 1024, decoded=2**20, out_features=4096, classes=50, label_length=20
)
OVERHEAD = 512 * 1024
"""Bytes that parsing a header of at most 16 KiB may take."""
FIXTURES = Path(__file__).parent / "fixtures"

AGGREGATORS = {
    "stack": {},
    "gram": {},
    "float64": {"dtype": "float64"},
    "uncentred": {},
}
"""Options of ``Aggregator`` for every form of its state."""
CENTER_OF = {"uncentred": None}
"""The center of the summaries that a form absorbs, where it is not "class"."""

Tensor = tuple[str, list[int], bytes]


@dataclass
class Message:
    """A message taken apart: header fields and tensors as (dtype, shape, bytes)."""

    fields: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    text: str | None = None
    """Header text to send instead of the fields."""

    @classmethod
    def of(cls, blob: bytes) -> "Message":
        (length,) = struct.unpack("<Q", blob[:8])
        entries = json.loads(blob[8 : 8 + length])
        meta, body = entries.pop("__metadata__"), blob[8 + length :]
        tensors = {
            name: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])])
            for name, e in entries.items()
        }
        return cls(json.loads(meta["fedran"]), tensors)

    def array(self, name: str) -> np.ndarray:
        dtype, shape, data = self.tensors[name]
        return np.frombuffer(data, DTYPES[dtype]).reshape(shape)

    def put(self, name: str, array: Any, dtype: str | None = None) -> None:
        dtype = dtype or self.tensors[name][0]
        stored = np.ascontiguousarray(array, dtype=DTYPES[dtype])
        self.tensors[name] = (dtype, list(stored.shape), stored.tobytes())

    def section(self, path: str) -> tuple[dict[str, Any], str]:
        """The innermost object that a dotted path leads to, and the last name in it."""
        *outer, last = path.split(".")
        inner = self.fields
        for name in outer:
            inner = inner[name]
        return inner, last

    def bytes(self) -> bytes:
        text = self.text
        if text is None:
            text = json.dumps(self.fields, separators=(",", ":"))
        sha = hashlib.sha256(text.encode())
        for name, (dtype, shape, data) in sorted(self.tensors.items()):
            sha.update(f"\n{name} {dtype} {shape}\n".encode() + data)
        entries: dict[str, Any] = {"__metadata__": {"fedran": text, "sha256": sha.hexdigest()}}
        offset = 0
        for name in sorted(self.tensors, key=lambda n: (-_width(self.tensors[n][0]), n)):
            dtype, shape, data = self.tensors[name]
            end = offset + len(data)
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
            offset = end
        body = b"".join(self.tensors[name][2] for name in entries if name != "__metadata__")
        return framed(json.dumps(entries, separators=(",", ":")).encode(), body)


def _width(dtype: str) -> int:
    return {"I64": 8, "BF16": 2}.get(dtype) or np.dtype(DTYPES[dtype]).itemsize


def framed(header: bytes, body: bytes = b"") -> bytes:
    """Length, header padded to 8, body: a safetensors file with any header."""
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + body


def tampered(blob: bytes, change: Callable[[Message], object]) -> bytes:
    """The message after ``change``, with a checksum that is valid for it."""
    message = Message.of(blob)
    change(message)
    return message.bytes()


def set_field(path: str, value: Any) -> Callable[[Message], None]:
    """A change that replaces the header field at a dotted path."""

    def change(message: Message) -> None:
        inner, last = message.section(path)
        inner[last] = value

    return change


def drop_field(path: str) -> Callable[[Message], None]:
    """A change that removes the header field at a dotted path."""

    def change(message: Message) -> None:
        inner, last = message.section(path)
        del inner[last]

    return change


def put(name: str, value: Any, dtype: str | None = None) -> Callable[[Message], None]:
    """A change that replaces a tensor."""
    return lambda message: message.put(name, value, dtype)


def put_stream(name: str, data: bytes) -> Callable[[Message], None]:
    """A change that replaces a compressed tensor by these bytes, compressed."""
    return put(name, np.frombuffer(zlib.compress(data, 9), np.uint8))


def summary(
    n: int = 12,
    M: int = 16,
    rank: int | None = 3,
    seed: int = 0,
    labels: tuple = (2, "ant", "bee"),
    center: str | None = "class",
) -> fedran.Summary:
    """A summary of relu features with a fingerprint."""
    rng = np.random.default_rng(seed)
    H = np.maximum(rng.standard_normal((n, M)), 0).astype(np.float32)
    y = [labels[i % len(labels)] for i in range(n)]
    print_ = fedran.Fingerprint.of(backbone="tiny", d=4, M=M, seed=0)
    return fedran.summarize(H, y, rank=rank, center=center, fingerprint=print_)


def some_points(n: int = 30, d: int = 16, seed: int = 0, size: int = 2) -> fedran.Points:
    """Points of never negative features with a fingerprint."""
    rng = np.random.default_rng(seed)
    phi = fedran.KernelFeatures(d, "hellinger", source="tiny")
    y = [(2, "ant", "bee")[i % 3] for i in range(n)]
    return fedran.condense(phi(rng.random((n, d))), y, size, fingerprint=phi.fingerprint)


def kernel_head(landmarks: int | None = 8) -> fedran.Head:
    """A head of ``some_points``."""
    agg = fedran.Aggregator(fingerprint=some_points().fingerprint)
    agg.absorb(some_points(size=1), client="a", task="t")
    return agg.solve(landmarks=landmarks)


@cache
def encoded(precision: str = "mixed", center: str | None = "class") -> bytes:
    """The message of ``summary(center=center)``."""
    return fedran.encode(summary(center=center), precision)


def solved_head(M: int = 16) -> fedran.Head:
    agg = fedran.Aggregator(M)
    agg.absorb(summary(M=M), client="a", task="t")
    return agg.solve()


def half_done(form: str) -> fedran.Aggregator:
    """A server after some uploads: two tasks, the last one open, decoded and local summaries."""
    agg = fedran.Aggregator(32, **AGGREGATORS[form])
    shape: dict[str, Any] = {"n": 20, "M": 32, "center": CENTER_OF.get(form, "class")}
    if form == "stack":  # both uploads together have at most M / 4 columns
        shape["rank"] = 1
    for i in range(2 if form == "stack" else 5):
        s = summary(**shape, seed=i, labels=(i, "ant"))
        if i % 2:
            s = fedran.decode(fedran.encode(summary(**shape, seed=i)))
        agg.absorb(s, client=f"c{i}", task=f"t{i // 3}")
    return agg


def assert_refused(
    blob: bytes, named: str, limits: fedran.Limits = SMALL, kind: type = fedran.Summary
) -> None:
    """decode raises Refused only, in one printable line that names the field, in little memory."""
    agg = fedran.Aggregator(16)
    agg.absorb(summary(seed=1), client="a", task="t")
    before = fedran.encode(agg)
    tracemalloc.start()
    try:
        with pytest.raises(fedran.Refused) as caught:
            agg.absorb(fedran.decode(blob, kind, limits=limits), client="b", task="t")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert text.isprintable(), repr(text)
    assert named in text
    assert len(text) < 600
    assert peak < limits.decoded + 3 * len(blob) + OVERHEAD
    assert fedran.encode(agg) == before


def to_text(blob: bytes) -> str:
    return "\n".join(textwrap.wrap(base64.b64encode(blob).decode(), 96)) + "\n"


def fixture(name: str) -> bytes:
    return base64.b64decode((FIXTURES / f"{name}.txt").read_text())


def codes(value, rows=3, dtype=np.int8):
    """Equal codes of 16 values per row, as bytes."""
    return np.full((rows, 16), value, dtype=dtype).tobytes()
