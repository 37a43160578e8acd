"""The container of every message: a safetensors file with a JSON header and a checksum.

Written by our own code, because the order of the metadata must not depend on a hash seed. Read by
the safetensors library, which checks offsets, sizes and coverage.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import safetensors
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.wire.validation import Header, Limits

FORMAT = "fedran"
MAJOR, MINOR = 3, 0
LARGEST_DIMENSION = 2**40
DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
Tensor: TypeAlias = NDArray[Any] | bytes
"""What ``pack`` stores: an array, or bytes as a tensor U8 [n] (``Container.stream`` reads them)."""


@dataclass(frozen=True)
class Container:
    """A verified message: its kind, header fields, tensors (views of one copy) and digest."""

    kind: str
    header: Header
    tensors: dict[str, NDArray[Any]]
    digest: str
    size: int
    """Bytes of the whole message."""

    def of_kind(self, kind: str, hint: str = "") -> Container:
        """Return the message; refuse it if it is of another kind."""
        if self.kind != kind:
            raise Refused("kind", kind, self.kind, hint=hint)
        return self

    def tensor(self, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """The tensor of this name; refuse the message unless it has this dtype and shape."""
        if name not in self.tensors:
            raise Refused(name, f"a tensor {dtype} {list(shape)}", "none")
        found = self.tensors[name]
        if found.dtype != DTYPES[dtype] or found.shape != shape:
            got = f"{_NAMES[found.dtype]} {list(found.shape)}"
            raise Refused(name, f"{dtype} {list(shape)}", got)
        return found

    def stream(self, name: str) -> bytes:
        """The bytes of a one-dimensional U8 tensor."""
        found = self.tensors.get(name)
        if found is None or found.dtype != DTYPES["U8"] or found.ndim != 1:
            raise Refused(name, "a tensor U8 [n]", "none" if found is None else "another kind")
        return found.tobytes()

    def only(self, *names: str) -> None:
        """Refuse the message if it has tensors with other names."""
        extra = sorted(self.tensors.keys() - set(names))
        if extra:
            raise Refused("tensors", f"only {', '.join(names)}", ", ".join(extra))


def pack(kind: str, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A message as bytes. The same input gives the same bytes on every machine."""
    head = {"format": FORMAT, "version": f"{MAJOR}.{MINOR}", "kind": kind, **fields}
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    arrays = {}
    for name, tensor in tensors.items():
        a = np.frombuffer(tensor, dtype=np.uint8) if isinstance(tensor, bytes) else tensor
        arrays[name] = np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("<"))
    entries: dict[str, Any] = {"__metadata__": {FORMAT: text, "sha256": _checksum(text, arrays)}}
    offset = 0
    # Wide types first: readers that map the file into memory need aligned tensors.
    for name in sorted(arrays, key=lambda n: (-arrays[n].dtype.itemsize, n)):
        a = arrays[name]
        entries[name] = {
            "dtype": _NAMES[a.dtype],
            "shape": list(a.shape),
            "data_offsets": [offset, offset + a.nbytes],
        }
        offset += a.nbytes
    raw = json.dumps(entries, separators=(",", ":")).encode("ascii")
    raw += b" " * (-len(raw) % 8)
    body = [arrays[name].data if arrays[name].size else b"" for name in list(entries)[1:]]
    return b"".join([len(raw).to_bytes(8, "little"), raw, *body])


def unpack(blob: bytes, limits: Limits) -> Container:
    """Parse and verify a message from anyone: sizes, layout, dtypes, checksum, version.

    Every failure raises ``Refused``. The fields and shapes of one kind of message are checked by
    its codec.
    """
    if not isinstance(blob, (bytes, bytearray, memoryview)):
        raise TypeError(f"a message is bytes, got {type(blob).__name__}")
    blob = bytes(blob)
    if len(blob) > limits.message:
        raise Refused("message", f"at most {limits.message} bytes", len(blob))
    length = int.from_bytes(blob[:8], "little")
    if length > len(blob) - 8:
        got = "another kind of file, or a damaged one" if blob else "an empty one"
        raise Refused("message", "a fedran file", got)
    if length > limits.header:
        raise Refused("message", f"a header of at most {limits.header} bytes", length)
    try:
        parts = safetensors.deserialize(blob)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as reason:
        what = str(reason).removeprefix("Error while deserializing: ")
        hint = "not a fedran file, or a damaged one"
        raise Refused("message", "a complete safetensors file", what, hint=hint) from None
    metadata = json.loads(blob[8 : 8 + length]).get("__metadata__") or {}
    if set(metadata) != {FORMAT, "sha256"}:
        raise Refused("message", "fedran metadata", sorted(metadata) or "none")
    tensors = {}
    for name, part in parts:
        shape, dtype = part["shape"], part["dtype"]
        if len(shape) > 2 or max(shape, default=0) > LARGEST_DIMENSION:
            raise Refused(name, f"at most 2 dimensions up to {LARGEST_DIMENSION}", shape)
        if dtype not in DTYPES:
            raise Refused(name, f"one of {', '.join(DTYPES)}", dtype)
        tensors[name] = np.frombuffer(part["data"], dtype=DTYPES[dtype]).reshape(shape)
    if _checksum(metadata[FORMAT], tensors) != metadata["sha256"]:
        hint = "the message was altered; request it again"
        raise Refused("sha256", "the checksum of the contents", "another", hint=hint)
    header = Header.parse(metadata[FORMAT])
    if header.text("format", 32) != FORMAT:
        raise Refused("format", FORMAT, header.text("format", 32))
    version = header.text("version", 16)
    if not re.fullmatch(r"[0-9]+\.[0-9]+", version):
        raise Refused("version", "major.minor", version)
    major = int(version.partition(".")[0])
    if major != MAJOR:
        newer, older = (
            "update fedran to read it",
            "it was written by an older fedran: make it again",
        )
        raise Refused("version", f"{MAJOR}.x", version, hint=newer if major > MAJOR else older)
    digest = hashlib.sha256(blob).hexdigest()
    return Container(header.text("kind", 32), header, tensors, digest, len(blob))


def inflate(stream: bytes, most: int, name: str) -> bytes:
    """The contents of a zlib stream; refused where they are longer, or the stream is not one."""
    decoder = zlib.decompressobj()
    try:
        # One byte more than expected is enough to notice a longer stream without holding it.
        data = decoder.decompress(stream, most + 1)
    except zlib.error as reason:
        raise Refused(name, "a zlib stream", str(reason)) from None
    if len(data) > most or not decoder.eof or decoder.unused_data:
        got = f"more than {most}" if len(data) > most else "an incomplete or longer stream"
        raise Refused(name, f"a stream of at most {most} bytes when decompressed", got)
    return data


def _checksum(text: str, tensors: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over the header text and every tensor's name, dtype, shape and bytes."""
    sha = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    for name in sorted(tensors):
        a = tensors[name]
        sha.update(f"\n{name} {_NAMES[a.dtype]} {list(a.shape)}\n".encode("utf-8", "replace"))
        sha.update(a.data if a.size else b"")
    return sha.hexdigest()
