"""A million rows through accumulators: rows per second and memory, by the number of processes.

    python benchmarks/large_data.py

Rows are made where they are added, a partition at a time. One process adds them to one sum; Dask
merges states of bytes from one worker and from two. Writes results/large_data.md.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
import time
from functools import reduce
from pathlib import Path

import numpy as np
import psutil

ROWS, PART, D, M, CLASSES = 1_000_000, 10_000, 512, 512, 100
RESULTS = Path(__file__).resolve().parent.parent / "results"


def part(i: int) -> tuple[np.ndarray, np.ndarray]:
    """One partition: rows around the means of 100 classes."""
    rng = np.random.default_rng(i)
    y = rng.integers(0, CLASSES, PART)
    means = np.random.default_rng(-1 % 2**32).standard_normal((CLASSES, D), dtype=np.float32)
    return rng.standard_normal((PART, D), dtype=np.float32) + means[y], y


def one_process() -> None:
    """The sum of all partitions, without bytes."""
    from fedran import RandomFeatures
    from fedran.core.labels import encode_labels
    from fedran.core.sums.exact_sum import ExactSum

    phi, total = RandomFeatures(D, M), ExactSum(M, "float64", stack=False)
    for i in range(ROWS // PART):
        Z, y = part(i)
        total.add_rows(phi.blocks(Z, 16 * 2**20), *encode_labels(y, PART))
    total.summary(256, phi.fingerprint)


def by_dask(workers: int) -> None:
    """The same through states of bytes."""
    import dask.bag

    from fedran import RandomFeatures, accumulate

    empty = accumulate.start(RandomFeatures(D, M))
    numbers = dask.bag.from_sequence(range(ROWS // PART), npartitions=4 * workers)
    total = numbers.reduction(
        lambda found: reduce(lambda state, i: accumulate.add(state, *part(i)), found, empty),
        lambda states: reduce(accumulate.merge, states),
    )
    accumulate.finish(total.compute(scheduler="processes", num_workers=workers), 256)


MODES = {"one process, one sum": 0, "Dask, one worker": 1, "Dask, two workers": 2}


def measure(workers: int) -> tuple[float, float, float]:
    """Seconds, processor seconds and the largest memory of all processes together, in MiB."""
    start, most, used = time.perf_counter(), 0, dict[int, float]()
    child = subprocess.Popen([sys.executable, __file__, str(workers)])
    while child.poll() is None:
        now = 0
        for process in [psutil.Process(child.pid), *psutil.Process(child.pid).children(True)]:
            try:
                now += process.memory_full_info().pss
                times = process.cpu_times()
                used[process.pid] = times.user + times.system
            except psutil.Error:
                continue
        most = max(most, now)
        time.sleep(0.2)
    if child.returncode:
        raise SystemExit(child.returncode)
    return time.perf_counter() - start, sum(used.values()), most / 2**20


def main() -> None:
    """Measure in fresh processes, and write the page."""
    if len(sys.argv) > 1:
        workers = int(sys.argv[1])
        (by_dask if workers else one_process)(*[workers] * bool(workers))
        return
    text = [
        "# A million rows",
        "",
        f"`python benchmarks/large_data.py`, {datetime.date.today()}: {ROWS:,} rows of {D} "
        f"features, M = {M}, {CLASSES} classes, partitions of {PART:,} rows, one BLAS thread per "
        f"process, {psutil.cpu_count()} cores, load {psutil.getloadavg()[0]:.0f} at the start. "
        "Memory is that of all processes together, shared pages once. Rows are made in the same "
        "processes.",
        "",
        "| | rows per second | rows per processor second | MiB |",
        "|---|---|---|---|",
    ]
    for name, workers in MODES.items():
        seconds, processor, memory = measure(workers)
        cells = [f"{ROWS / s:,.0f}" for s in (seconds, processor)]
        text.append(f"| {name} | {cells[0]} | {cells[1]} | {memory:.0f} |")
        print(text[-1], flush=True)
    (RESULTS / "large_data.md").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
