"""Cost of a secure sum: seconds per site and for the server, and bytes per stage.

    OMP_NUM_THREADS=1 python benchmarks/secure_sums.py            everything, about six minutes
    OMP_NUM_THREADS=1 python benchmarks/secure_sums.py --quick    without Flower, about a minute

Three parts: the protocol without a network, where every request and answer is made, parsed and
checked; the work beside it, from features to integers and back; and two tasks of a federation with
SuperLink, SuperNodes and TLS (``--sites`` of them, at ``--width`` and ``--sketch``). Writes
results/secure.md, unless ``--quick`` or another size is given.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import fedran
from federation import Watch
from fedran.core.private.sketch_sums import SketchSums, blind_omega, sketch_sums
from fedran.federation.flower.programs import free_port
from fedran.federation.ops.scaffold import DeclaredFeatures, make_federation
from fedran.federation.ops.services import start_federation, stop_federation
from fedran.federation.ops.tasks import run_task
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.secure.masking import masking, unmasking
from fedran.federation.secure.masking.attempt import (
    STAGES,
    Attempt,
    SiteIdentity,
    Stage,
    roster_digest,
)
from fedran.federation.secure.masking.ciphers import add_mask
from fedran.federation.secure.masking.contribution import (
    Content,
    encode_contribution,
    sum_to_summary,
)
from fedran.federation.secure.masking.masking import SiteState
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.events import EventLog
from fedran.federation.site.settings import SitePaths
from speed import CLASSES, D, M, features

RESULTS = Path(__file__).resolve().parent.parent / "results"
SKETCH, SITES, ROWS, MIB = 512, 20, 2000, 2**20


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
            else:
                states[client], answer = masking.answer(states[client], request, me, vector)
            if stage is Stage.MASK:
                cost.state = len(states[client].to_bytes())
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


def protocol_lines() -> list[str]:
    """The protocol without a network."""
    mask = np.zeros(10_000_000, np.uint32)
    start = time.process_time()
    add_mask(mask, b"k" * 32, 1)
    seconds = time.process_time() - start
    lines = [
        "The protocol alone, without a network: every message is made, parsed and checked. The "
        "vector holds class sums, counts, energy and the sketch or the packed Gram, 4 bytes per "
        "number. Seconds are processor time: of a site the mean over sites, of the server for all "
        "sites together. Bytes are those of one site, up (its answer) and down (the server's "
        f"request). Making and adding one mask of 10 million numbers takes {seconds:.3f} s.",
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
    return lines


def work_lines() -> list[str]:
    """What a site computes before the protocol, and the server after it."""
    phi = fedran.RandomFeatures(D, M, "hellinger", seed=0, source="")
    Z, y = features(ROWS, 0)
    phi(Z[:1])  # draws the projection
    content = Content(tuple(range(CLASSES)), SKETCH, 0, SITES, 10_000)
    found: list[tuple[str, str, float]] = []

    def timed(where: str, what: str, act: Callable[[], Any]) -> Any:
        times = []
        for _ in range(3):
            start = time.process_time()
            value = act()
            times.append(time.process_time() - start)
        found.append((where, what, min(times)))
        return value

    H = timed("site", f"random features of {ROWS:,} rows", lambda: phi(Z))
    omega = timed("site", "the test matrix", lambda: blind_omega(M, SKETCH, 0))
    mine: SketchSums = timed("site", "totals", lambda: sketch_sums(H, y, content.classes, omega))
    vector = timed("site", "integers", lambda: encode_contribution(mine, content, phi.fingerprint))
    total = np.sum([vector] * SITES, axis=0, dtype=np.uint32)
    timed(
        "server",
        "the summary of the sum",
        lambda: sum_to_summary(total, content, phi.fingerprint, M, SITES),
    )
    for where in ("site", "server"):
        found.append((where, "**all**", sum(s for w, _, s in found if w == where)))
    lines = [
        "",
        f"## The work beside the protocol, M = {M}, s = {SKETCH}",
        "",
        "Processor time of one thread, the best of three.",
        "",
        "| where | what | seconds |",
        "|---|---|---:|",
        *(f"| {where} | {what} | {seconds:.2f} |" for where, what, seconds in found),
        "",
        f"A vector has {vector.nbytes:,} bytes.",
    ]
    print("\n".join(lines), flush=True)
    return lines


TASKS = "task-1", "task-2"
PROGRAMS = ("executor", "supernode", "superlink")


def used(folder: Path) -> dict[str, float]:
    """Processor time of Flower's program and of the app in a folder, ended children included."""
    found = {}
    holder = lock_holder(folder / "log") or {}
    for process in psutil.Process(holder["pid"]).children() if "pid" in holder else ():
        command = " ".join(process.cmdline())
        for program in PROGRAMS:
            if f".{program}" in command or f"flower-{program}" in command:
                found[program] = sum(process.cpu_times()[:4])
    return found


def flower_lines(folder: Path, sites: int, width: int, sketch: int) -> list[str]:
    """Two tasks of a federation on this machine."""
    address = f"127.0.0.1:{free_port()}"
    places = make_federation(
        folder,
        federation="bench",
        n_sites=sites,
        address=address,
        features=DeclaredFeatures(D, "hellinger"),
        out_features=width,
        privacy="secure",
        classes=tuple(range(CLASSES)),
    )
    server = ServerPaths.find(folder)
    with server.settings_file.open("a") as file:
        file.write(f"sketch = {sketch}\nexchange_seconds = 600\ncatch_up = 0\n")
    for i, place in enumerate(places):
        for number, task in enumerate(TASKS):
            Z, y = features(ROWS, 1000 * number + i)
            np.savez(place.folder / "data" / f"{task}.npz", features=Z, labels=y)
    watch = Watch(
        str(folder), ("flower.executor server", "flower.superlink", "flower.executor client")
    )
    watch.start()
    costs, exchanges = [], []
    try:
        start_federation(folder, say=print)
        for task in TASKS:
            costs.append(task_cost(server, places, task))
            exchanges.append(exchange_seconds(server, task))
            print(task, costs[-1], exchanges[-1], flush=True)
    finally:
        watch.ended.set()
        stop_federation(folder, say=print)
    peaks = [f"{watch.peaks.get(name, 0):.0f}" for name in watch.names]
    memory = "server app {} MiB, SuperLink {} MiB, a site's app {} MiB".format(*peaks)
    return [
        "",
        f"## Over Flower: SuperLink, {sites} SuperNodes, TLS, M = {width}, s = {sketch}",
        "",
        f"All programs share {os.cpu_count()} cores; {ROWS:,} rows per site. Seconds of a site and "
        "of the server are processor time: of our app, from reading rows to the end of the task, "
        "and of Flower's program. Bytes are those at the SuperLink, per site.",
        "",
        "| task | whole task, s | site: app | SuperNode | server: app | SuperLink | MiB up | MiB down |",  # noqa: E501
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(f"| {task} | {row} |" for task, row in zip(TASKS, costs, strict=True)),
        "",
        "| seconds from the first event of the task to the end of | " + " | ".join(STAGES) + " |",
        "|---|" + "---:|" * len(STAGES),
        *(f"| {task} | {row} |" for task, row in zip(TASKS, exchanges, strict=True)),
        "",
        f"Largest resident sets, sampled twice per second: {memory}.",
    ]


def task_cost(server: ServerPaths, places: list[SitePaths], task: str) -> str:
    """Runs a task: seconds and bytes as cells of the table."""
    before = [used(place.folder) for place in places], used(server.folder)
    start = time.perf_counter()
    done = run_task(server, task, say=print)
    seconds = time.perf_counter() - start
    assert done == "complete", done
    time.sleep(3)  # programs take note of children that ended
    after = [used(place.folder) for place in places], used(server.folder)
    with closing(Database(server.state, read_only=True)) as database:
        (run,) = [run for run in database.runs() if run.task == task]

    def spent(name: str) -> float:
        return float(np.mean([b[name] - a[name] for a, b in zip(before[0], after[0], strict=True)]))

    link, app = (after[1][name] - before[1][name] for name in ("superlink", "executor"))
    up, down = (count / len(places) / MIB for count in (run.received, run.sent))
    return (
        f"{seconds:.0f} | {spent('executor'):.2f} | {spent('supernode'):.2f} | {app:.1f} | "
        f"{link:.1f} | {up:.2f} | {down:.2f}"
    )


def exchange_seconds(server: ServerPaths, task: str) -> str:
    """When the stages of a task's sum ended, as cells of the table."""
    with closing(Database(server.state, read_only=True)) as database:
        book = EventLog(database).read()
    start = next(e["at"] for e in book if e["event"] == "task" and e["task"] == task)
    ends = {
        e["stage"]: e["at"] - start
        for e in book
        if e["event"] == "sum" and e["state"] == "stage" and e["name"] == f"{task}.1"
    }
    return " | ".join(f"{ends[stage]:.0f}" for stage in STAGES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without Flower")
    parser.add_argument("--flower", action="store_true", help="only the part over Flower")
    parser.add_argument("--sites", type=int, default=SITES, help="number of SuperNodes")
    parser.add_argument("--width", type=int, default=M, help="random features over Flower")
    parser.add_argument("--sketch", type=int, default=SKETCH, help="columns over Flower")
    options = parser.parse_args()
    lines = [
        "# Secure sums",
        "",
        f"Made by `python benchmarks/secure_sums.py` on {datetime.date.today()}, "
        f"{platform.system()}, {os.cpu_count()} cores, one thread per program, {CLASSES} classes.",
        "",
    ]
    if not options.flower:
        lines += [*protocol_lines(), *work_lines()]
    if not options.quick:
        with tempfile.TemporaryDirectory() as name:
            sizes = options.sites, options.width, options.sketch
            lines += flower_lines(Path(name) / "bench", *sizes)
            print("\n".join(lines[-20:]))
        if sizes == (SITES, M, SKETCH) and not options.flower:
            (RESULTS / "secure.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
