"""Edge aggregators: their cost in accuracy and bytes, compared with clients that send directly.

    FEDRAN_DATA=... python benchmarks/edge.py

Uses the digits of scikit-learn, and CIFAR-100 features if FEDRAN_DATA is set. The same uploads are
absorbed one by one (flat), or summed by edges that forward one message per task. Takes about five
minutes on two cores and writes results/edge.md.
"""

from __future__ import annotations

import datetime
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import fedran
from fedran.core.summary import combine
from fedran.data.catalogue import VARIABLE, data_file, digits
from fedran.data.feature_file import read_feature_file
from fedran.data.stream import make_stream

RESULTS = Path(__file__).resolve().parent.parent / "results"
TASKS, CLIENTS, BETA = 5, 10, 0.1
HEADER = [
    "| edges | columns forwarded | precision | A_avg | A_T | same label as flat | f "
    "| bytes to the server | largest message | seconds per sum |",
    "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
]


@dataclass(frozen=True)
class Bench:
    """A dataset, the settings of its clients, and the settings that its edges try."""

    name: str
    dataset: object
    out_features: int
    client_rank: int
    seeds: tuple[int, ...]
    tries: list[tuple[int, int | None, str]]
    """Edges, columns they keep (None: all), precision of a forward."""


@dataclass
class Measured:
    """Measurements of one way of sending over one stream."""

    accuracies: list[float] = field(default_factory=list)
    labels: object = None
    f: float = 0.0
    sizes: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    seconds: float = 0.0
    """Of the first sum, the best of five, as other programs may use the same machine."""


def benches():
    found = [
        Bench(
            "digits, M = 1024, clients send r = 32",
            digits(),
            1024,
            32,
            (1993, 1994, 1995),
            [(n, r, p) for n in (2, 5) for r, p in forwards((16, 32, 64))],
        )
    ]
    if os.environ.get(VARIABLE):
        path = data_file("features/cifar100-efficientnet_lite0.npz")
        tries = [(2, r, p) for r, p in forwards((64, 128, 256))]
        cifar = read_feature_file(path)
        title = "CIFAR-100 features, M = 8192, clients send r = 256"
        found.append(Bench(title, cifar, 8192, 256, (1993,), tries))
    return found


def forwards(ranks):
    """All columns in float32, all columns in the default precision, and truncated sums."""
    return [(None, "float32"), (None, "mixed"), *((r, "mixed") for r in reversed(ranks))]


def client_uploads(bench, stream, phi):
    """Per task, the uploads of the clients that have rows."""
    data = bench.dataset

    def upload(rows):
        H, y = phi(data.X_train[rows]), data.y_train[rows]
        return fedran.encode(fedran.summarize(H, y, bench.client_rank))

    return [[upload(rows) for rows in task.rows if len(rows)] for task in stream.tasks]


def summed(blobs, edges, rank, precision, measured):
    """The messages that edges forward for one task, each for its share of the clients."""
    messages = []
    for group in np.array_split(np.arange(len(blobs)), min(edges, len(blobs))):
        parts = [fedran.decode(blobs[i]) for i in group]
        times: list[float] = []
        for _ in range(1 if measured.seconds else 5):
            start = time.perf_counter()
            whole = combine(parts, rank)
            times.append(time.perf_counter() - start)
        measured.seconds = measured.seconds or min(times)
        measured.columns.append(whole.rank)
        messages.append(fedran.encode(whole, precision))
    return messages


def run(bench, stream, uploads, H_test, edges=0, rank=None, precision="mixed"):
    """Accuracy of the server after every task. With ``edges=0`` every client sends directly."""
    data, measured = bench.dataset, Measured()
    agg = fedran.Aggregator(bench.out_features)
    for t, blobs in enumerate(uploads):
        sent = summed(blobs, edges, rank, precision, measured) if edges else blobs
        for k, blob in enumerate(sent):
            agg.absorb(fedran.decode(blob), client=str(k), task=str(t))
            measured.sizes.append(len(blob))
        rows = np.isin(data.y_test, stream.seen(t))
        measured.labels = agg.solve().predict(H_test[rows])
        measured.accuracies.append(100 * np.mean(measured.labels == data.y_test[rows]))
    measured.f = agg.accounts.cut_fraction
    return measured


def line(edges, rank, precision, pairs):
    """A row of the table: means over the streams, compared with the flat runs."""
    runs = [run for run, _ in pairs]
    mean = lambda of: float(np.mean([of(m) for m in runs]))  # noqa: E731
    same = np.mean([np.mean(m.labels == flat.labels) for m, flat in pairs])
    columns = [c for m in runs for c in m.columns]
    kept = "-" if not edges else str(rank) if rank else f"all (up to {max(columns)})"
    seconds = mean(lambda m: m.seconds) if edges else None
    return (
        f"| {edges or 'none'} | {kept} | {precision} | {mean(lambda m: np.mean(m.accuracies)):.2f} "
        f"| {mean(lambda m: m.accuracies[-1]):.2f} | {100 * same:.2f} % "
        f"| {mean(lambda m: m.f):.3f} | {mean(lambda m: sum(m.sizes)) / 2**20:.2f} MiB "
        f"| {max(max(m.sizes) for m in runs) / 2**20:.2f} MiB "
        f"| {'-' if seconds is None else f'{seconds:.3f}'} |"
    )


def table(bench):
    """The rows of the table of one dataset."""
    data = bench.dataset
    phi = fedran.RandomFeatures(data.X_train.shape[1], bench.out_features, data.feature_kind)
    H_test = phi(data.X_test)
    pairs = {}
    for seed in bench.seeds:
        stream = make_stream(data.y_train, n_tasks=TASKS, n_clients=CLIENTS, beta=BETA, seed=seed)
        uploads = client_uploads(bench, stream, phi)
        flat = run(bench, stream, uploads, H_test)
        pairs.setdefault((0, None, "mixed"), []).append((flat, flat))
        for setting in bench.tries:
            found = run(bench, stream, uploads, H_test, *setting)
            pairs.setdefault(setting, []).append((found, flat))
            print(line(*setting, pairs[setting]), flush=True)
    return [line(*setting, found) for setting, found in pairs.items()]


def main():
    lines = [
        "# Edge aggregators",
        "",
        f"Made by `python benchmarks/edge.py` on {datetime.date.today()}, "
        f"{os.environ.get('OMP_NUM_THREADS', os.cpu_count())} threads: {TASKS} tasks, {CLIENTS} "
        f"clients, Dirichlet {BETA}. Clients' uploads in the default precision (5 bits); an edge "
        "sums those of its share of the clients and forwards one message per task. Bytes to the "
        "server are of all tasks; f is the share of the energy cut, by clients and edges.",
    ]
    for bench in benches():
        streams = "stream seed " + ", ".join(map(str, bench.seeds))
        lines += ["", f"## {bench.name}, {streams}", "", *HEADER, *table(bench)]
    (RESULTS / "edge.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
