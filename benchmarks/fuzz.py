"""Damaged messages of every kind: python benchmarks/fuzz.py [--messages 1000000] [--seed 0]

Most are sealed again, so that their checksum is valid and the checks behind it are reached. Only
``Refused`` may come out, within a second of processor time per message. What is accepted is
absorbed, used or written again. Prints the counts; the exit code is 1 if anything else happened.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np

import fedran
from fedran.wire.container import pack, unpack
from fedran.wire.validation import DEFAULT_LIMITS

JUNK: list[Any] = [
    None, True, -1, 0, 1, 3, 2**31, 2**63, 10**40, 0.5, -1.0, 1e308, "", "x" * 300, "\0", [], {},
    [0], [[1]], ["a", "a"], [1, "b"], {"a": 1}, [None] * 50,
]  # fmt: skip
OWN = {"format", "version", "kind"}


def originals() -> list[bytes]:
    """A message of every kind, small enough to damage every part of it often."""
    rng = np.random.default_rng(0)
    Z, y = rng.random((18, 12)), [("ant", "bee", 3)[i % 3] for i in range(18)]
    phi = fedran.KernelFeatures(12, "hellinger", source="fuzz")
    wide = fedran.RandomFeatures(12, 24, "hellinger", source="fuzz")
    points = [fedran.condense(phi(Z), y, size, fingerprint=phi.fingerprint) for size in (1, 3)]
    summary = fedran.summarize(wide(Z), y, 4, fingerprint=wide.fingerprint)
    servers = fedran.Aggregator(fingerprint=phi.fingerprint), fedran.Aggregator(24)
    for i, part in enumerate(points):
        servers[0].absorb(part, client=f"site-{i}", task="may")
    servers[1].absorb(fedran.summarize(wide(Z), y, 4), client="a", task="may")
    heads = [servers[0].solve(landmarks=m) for m in (None, 9)] + [servers[1].solve(novelty=3)]
    return [fedran.encode(obj) for obj in (*points, summary, *heads, *servers)]


def damaged(blob: bytes, rng: np.random.Generator) -> bytes:
    """The message with bytes, tensors or header fields changed."""
    if rng.random() < 0.1:
        return with_noise(blob, rng)
    message = unpack(blob, DEFAULT_LIMITS)
    fields = {k: v for k, v in message.header.fields.items() if k not in OWN}
    tensors: dict[str, Any] = dict(message.tensors)
    for _ in range(int(rng.integers(1, 4))):
        if rng.random() < 0.4:
            place: Any = fields
            while True:
                keys = list(place) if isinstance(place, dict) else range(len(place))
                key = keys[int(rng.integers(len(keys)))]
                if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() > 0.6:
                    break
                place = place[key]
            place[key] = JUNK[int(rng.integers(len(JUNK)))]
            continue
        name = list(tensors)[int(rng.integers(len(tensors)))]
        array = np.ascontiguousarray(tensors[name])
        raw = with_noise(array.tobytes(), rng)
        whole = len(raw) // array.dtype.itemsize * array.dtype.itemsize
        tensors[name] = np.frombuffer(raw[:whole], dtype=array.dtype)
        if tensors[name].size == array.size:
            tensors[name] = tensors[name].reshape(array.shape)
        if rng.random() < 0.05:
            del tensors[name]
        if not tensors:
            break
    try:
        return pack(message.kind, fields, tensors)
    except ValueError:  # JSON cannot hold it
        return with_noise(blob, rng)


def with_noise(data: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes changed, and at times an end cut off or random bytes added."""
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        if found:
            found[int(rng.integers(len(found)))] = int(rng.integers(256))
    if rng.random() < 0.1:
        del found[int(rng.integers(len(found) + 1)) :]
    return bytes(found + (rng.bytes(5) if rng.random() < 0.05 else b""))


def use(obj: Any) -> None:
    """What a reader does with an object."""
    if isinstance(obj, (fedran.Points, fedran.Summary)):
        width = None if isinstance(obj, fedran.Points) else obj.out_features
        print_ = obj.fingerprint if isinstance(obj, fedran.Points) else None
        if isinstance(obj, fedran.Summary) and obj.fingerprint is not None:
            print_ = obj.fingerprint
        server = fedran.Aggregator(width, fingerprint=print_)
        server.absorb(obj, client="a", task="t")
    elif isinstance(obj, fedran.Head):
        if np.isfinite(obj.scores(np.full((2, obj.out_features), 0.1))).all():
            obj.predict(np.full((2, obj.out_features), 0.1))
    else:
        fedran.encode(obj)


def seconds_of(blob: bytes) -> float:
    """The processor time for a message. Another program may have had the processor before."""
    start = time.process_time()
    with suppress(fedran.Refused):
        use(fedran.decode(blob))
    return time.process_time() - start


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--messages", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    rng, blobs, outcomes = np.random.default_rng(args.seed), originals(), Counter[str]()
    start = time.monotonic()
    for i in range(args.messages):
        blob, began = damaged(blobs[i % len(blobs)], rng), time.monotonic()
        try:
            use(fedran.decode(blob))
            outcomes["accepted"] += 1
        except fedran.Refused as reason:
            outcomes["refused"] += 1
            if not str(reason).isprintable():
                outcomes["unreadable sentences"] += 1
        except Exception as reason:
            outcomes[f"other: {type(reason).__name__}: {reason}"[:200]] += 1
        if time.monotonic() - began > 1 and seconds_of(blob) > 1:
            outcomes["slow"] += 1
        if (i + 1) % 100_000 == 0:
            print(f"{i + 1:,} in {time.monotonic() - start:.0f} s: {dict(outcomes)}", flush=True)
    print(f"{args.messages:,} damaged messages: {dict(outcomes)}")
    return int(bool(outcomes.keys() - {"refused", "accepted"}))


if __name__ == "__main__":
    sys.exit(main())
