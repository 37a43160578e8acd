"""Models as messages: safetensors with one JSON field of metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedran.core.errors import Refused
from fedran.wire.container import FORMAT
from fedran.wire.validation import Header
from fedran_bench.methods.trained.lazy_torch import Tensor, torch

DTYPES = {"F32": "float32", "U8": "uint8", "I64": "int64"}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LARGEST_HEADER = 8 * 2**20
MOST_DIMENSIONS, LARGEST_DIMENSION = 8, 2**31


@dataclass(frozen=True)
class Message:
    """Fields and tensors of one kind of message."""

    header: Header
    tensors: dict[str, Tensor]


def pack_tensors(kind: str, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A message as bytes, those that safetensors writes. Equal input gives equal bytes.

    A model on an accelerator is copied to the host at once, not tensor by tensor.
    """
    text = json.dumps({"kind": kind, **fields}, separators=(",", ":"), allow_nan=False)
    entries: dict[str, Any] = {"__metadata__": {FORMAT: text}}
    flat, offset = [], 0
    for name in sorted(tensors, key=lambda n: (-tensors[n].element_size(), n)):
        tensor = tensors[name].detach()
        empty = torch.zeros(0, device=tensor.device)
        values = tensor.contiguous().view(-1) if tensor.numel() else empty
        flat.append(values.view(torch.uint8))
        entries[name] = {
            "dtype": NAMES[str(tensor.dtype).removeprefix("torch.")],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(flat[-1])],
        }
        offset += len(flat[-1])
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    if any(t.is_cuda for t in flat):
        host = torch.empty(offset, dtype=torch.uint8, pin_memory=True)
        flat = [host.copy_(torch.cat(flat))]
    return b"".join([len(header).to_bytes(8, "little"), header, *(t.numpy().data for t in flat)])


def unpack_tensors(kind: str, blob: bytes, device: str) -> Message:
    """The message. An incomplete message or one of another kind is refused.

    All tensors are parts of one copy of the message, which goes to the device at once.
    """
    length = int.from_bytes(blob[:8], "little")
    if len(blob) < 8 or length > min(LARGEST_HEADER, len(blob) - 8):
        raise Refused("message", "a safetensors file", f"{len(blob)} bytes", hint="ask again")
    entries = Header.parse(blob[8 : 8 + length])
    header = Header.parse(entries.section("__metadata__").text(FORMAT, length))
    found = header.fields.get("kind", "none")
    if found != kind:
        raise Refused("kind", kind, found)
    on_host = torch.empty(
        len(blob) - 8 - length, dtype=torch.uint8, pin_memory=device.startswith("cuda")
    )
    on_host.numpy()[:] = np.frombuffer(blob, dtype=np.uint8, offset=8 + length)
    values = on_host.to(device, non_blocking=True)
    tensors, start = {}, 0
    for name in (n for n in entries.fields if n != "__metadata__"):
        entry = entries.section(name)
        dtype = getattr(torch, DTYPES[entry.one_of("dtype", *DTYPES)])
        dimensions = len(entry.items("shape", MOST_DIMENSIONS))
        shape = entry.integers("shape", dimensions, high=LARGEST_DIMENSION)
        end = start + math.prod(shape) * dtype.itemsize
        given = entry.integers("data_offsets", 2)
        if given != [start, end] or end > len(values) or start % dtype.itemsize:
            expected = f"bytes {start} to {end} of {len(values)}, as fedran packs numbers"
            raise Refused(name, expected, given)
        tensors[name] = values[start:end].view(dtype).view(shape)
        start = end
    if start != len(values):
        raise Refused("message", f"{start} bytes of numbers", len(values))
    return Message(header, tensors)


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, named ``prefix/name``."""
    return {f"{prefix}/{name}": t for name, t in tensors.items()}


def strip_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under ``prefix/``, without the prefix."""
    start = f"{prefix}/"
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
