"""Models as messages: safetensors with one JSON field of metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedran.core.errors import Refused
from fedran.methods.trained.training.lazy_torch import Tensor, torch
from fedran.wire.container import FORMAT
from fedran.wire.validation import Header

DTYPES = {"F32": np.float32, "U8": np.uint8, "I64": np.int64}
NAMES = {np.dtype(dtype).name: name for name, dtype in DTYPES.items()}
LARGEST_HEADER = 8 * 2**20


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
    """The message. An incomplete message or one of another kind is refused."""
    import safetensors

    length = int.from_bytes(blob[:8], "little")
    if len(blob) < 8 or length > min(LARGEST_HEADER, len(blob) - 8):
        raise Refused("message", "a safetensors file", f"{len(blob)} bytes", hint="ask again")
    try:
        parts = safetensors.deserialize(blob)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as reason:
        raise Refused("message", "a complete safetensors file", str(reason)) from None
    metadata = json.loads(blob[8 : 8 + length]).get("__metadata__") or {}
    header = Header.parse(metadata.get(FORMAT, "{}"))
    found = header.fields.get("kind", "none")
    if found != kind:
        raise Refused("kind", kind, found)
    tensors = {}
    for name, part in parts:
        if part["dtype"] not in DTYPES:
            raise Refused(name, f"one of {', '.join(DTYPES)}", part["dtype"])
        try:
            array = np.frombuffer(part["data"], dtype=DTYPES[part["dtype"]]).reshape(part["shape"])
        except ValueError:
            raise Refused(name, "a shape that fits its numbers", part["shape"]) from None
        tensors[name] = torch.from_numpy(array).to(device)
    return Message(header, tensors)


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, named ``prefix/name``."""
    return {f"{prefix}/{name}": t for name, t in tensors.items()}


def strip_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under ``prefix/``, without the prefix."""
    start = f"{prefix}/"
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
