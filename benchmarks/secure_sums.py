"""Cost of a secure sum: seconds per site and for the server, and bytes per stage.

    OMP_NUM_THREADS=1 python benchmarks/secure_sums.py

Runs the whole protocol without a network: every request and answer is made, parsed and checked as
in a federation. Takes half a minute on one core and writes results/secure.md.
"""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedran.federation.protocol.identity import SiteKey
from fedran.federation.secure import masking, unmasking
from fedran.federation.secure.attempt import STAGES, Attempt, SiteIdentity, Stage, roster_digest
from fedran.federation.secure.ciphers import add_mask
from fedran.federation.secure.masking import SiteState

RESULTS = Path(__file__).resolve().parent.parent / "results"
CLASSES = 20
MIB = 2**20


@dataclass(frozen=True)
class Case:
    """A vector (class sums, counts, energy, sketch or packed Gram), sites, and who drops out."""

    title: str
    length: int
    sites: int
    dropped: int = 0
    """Sites that send shares but no vector: the server computes their masks."""


@dataclass
class Cost:
    """Measured costs. Seconds of a site: the mean over sites. Bytes: of one site."""

    site: dict[Stage, list[float]] = field(default_factory=lambda: {s: [] for s in STAGES})
    server: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    unmask: float = 0.0
    up: dict[Stage, int] = field(default_factory=dict)
    down: dict[Stage, int] = field(default_factory=dict)
    state: int = 0
    """Bytes of a site's saved state after the masked vector."""


def sketch(out_features: int, width: int) -> int:
    return out_features * (CLASSES + width) + CLASSES + 1


def packed_gram(features: int) -> int:
    return features * CLASSES + CLASSES + 1 + features * (features + 1) // 2


CASES = [
    Case("sketch, M = 8192, s = 512", sketch(8192, 512), 5),
    Case("sketch, M = 8192, s = 512", sketch(8192, 512), 20),
    Case("sketch, M = 8192, s = 512", sketch(8192, 512), 20, dropped=6),
    Case("sketch, M = 8192, s = 1024", sketch(8192, 1024), 20),
    Case("packed Gram, M = 2048", packed_gram(2048), 20),
    Case("packed Gram, d = 192", packed_gram(192), 20),
    Case("packed Gram, d = 192", packed_gram(192), 100),
    Case("packed Gram, d = 192", packed_gram(192), 100, dropped=33),
]


def measure(case: Case) -> Cost:
    keys = {f"site-{i:03d}": SiteKey.generate() for i in range(case.sites)}
    roster = {client: key.public for client, key in keys.items()}
    identities = {client: SiteIdentity(client, key, roster) for client, key in keys.items()}
    attempt = Attempt("bench", "may", 1, "f" * 64, "c" * 64, case.length, roster_digest(roster))
    rng, expected = np.random.default_rng(0), np.zeros(case.length, np.uint32)
    gone = list(keys)[: case.dropped]
    server, cost = unmasking.start(attempt, roster), Cost()
    states: dict[str, SiteState] = {}
    for stage in STAGES:
        for client in server.waiting_for:
            if client in gone and stage is Stage.MASK:
                continue
            vector = np.zeros(0, np.uint32)
            if stage is Stage.MASK:
                vector = rng.integers(0, 2**32, case.length, dtype=np.uint32)
                expected += vector
            start = time.process_time()
            request = unmasking.request(server, client)
            made = time.process_time()
            me = identities[client]
            if stage is Stage.ADVERTISE:
                states[client], answer = masking.advertise(request, me)
            elif stage is Stage.SHARE:
                states[client], answer = masking.share(states[client], request, me)
            elif stage is Stage.MASK:
                states[client], answer = masking.mask(states[client], request, me, vector)
                cost.state = len(states[client].to_bytes())
            elif stage is Stage.CONFIRM:
                states[client], answer = masking.confirm(states[client], request, me)
            else:
                states[client], answer = masking.reveal(states[client], request, me)
            answered = time.process_time()
            server = unmasking.collect(server, client, answer)
            cost.server[stage] += made - start + time.process_time() - answered
            cost.site[stage].append(answered - made)
            cost.up[stage], cost.down[stage] = len(answer), len(request)
            if stage is Stage.MASK:  # only the newest answer is needed for the bytes
                states[client].answers[stage] = b""
        server = unmasking.close(server)
    start = time.process_time()
    total = unmasking.unmask(server)
    cost.unmask = time.process_time() - start
    assert np.array_equal(total, expected)
    return cost


def rows(cost: Cost) -> list[str]:
    """One row per stage, and the sum."""
    found = []
    for stage in STAGES:
        server = cost.server[stage]
        found.append((stage, np.mean(cost.site[stage]), server, cost.up[stage], cost.down[stage]))
    found.append(("unmask", 0.0, cost.unmask, 0, 0))
    totals = [sum(row[k] for row in found) for k in range(1, 5)]
    found.append(("**all**", *totals))
    return [
        f"| {name} | {site:.4f} | {server:.3f} | {up:,} | {down:,} |"
        for name, site, server, up, down in found
    ]


def main() -> None:
    mask = np.zeros(10_000_000, np.uint32)
    start = time.process_time()
    add_mask(mask, b"k" * 32, 1)
    seconds = time.process_time() - start
    lines = [
        "# Secure sums",
        "",
        f"Made by `python benchmarks/secure_sums.py` on {datetime.date.today()}, one thread, "
        "without a network: every message is made, parsed and checked. 20 classes; the vector "
        "holds class sums, counts, energy and the sketch or the packed Gram, 4 bytes per number. "
        "Seconds are processor time: of a site the mean over sites, of the server for all sites "
        "together. Bytes are those of one site, up (its answer) and down (the server's request). "
        f"Making and adding one mask of 10 million numbers takes {seconds:.3f} s.",
    ]
    for case in CASES:
        cost = measure(case)
        dropped = f", {case.dropped} drop out after sharing" if case.dropped else ""
        lines += [
            "",
            f"## {case.title}: {case.length:,} numbers, {case.sites} sites{dropped}",
            "",
            "| stage | seconds per site | seconds of the server | bytes up | bytes down |",
            "|---|---:|---:|---:|---:|",
            *rows(cost),
            "",
            f"A site saves {cost.state / MIB:.2f} MiB to be able to resume.",
        ]
        print("\n".join(lines[-14:]), flush=True)
    (RESULTS / "secure.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
