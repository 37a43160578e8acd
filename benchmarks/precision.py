"""How many bits an upload needs: accuracy and bytes for bit allocations of ``mixed``.

    FEDRAN_DATA=... python benchmarks/precision.py

CIFAR-100 features, 5 tasks, 5 clients, Dirichlet 0.1, M = 8192, r = 256, one stream; the same
summaries are encoded in every way. About four minutes on two cores. Writes results/precision.md.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from unittest import mock

import numpy as np

import fedran
from fedran.data.catalogue import data_file
from fedran.data.feature_file import read_feature_file
from fedran.data.stream import make_stream
from fedran.wire import quantisation as quantise
from fedran.wire import summary_codec

RESULTS = Path(__file__).resolve().parent.parent / "results"
SETTINGS = [
    # precision, bits, slope, bits of the class sums
    ("float32", 5, 1.5, 12),
    ("float16", 5, 1.5, 12),
    ("int8", 5, 1.5, 12),
    ("mixed", 6, 1.0, 12),
    ("mixed", 6, 1.5, 12),
    ("mixed", 5, 1.0, 12),
    ("mixed", 5, 1.5, 12),
    ("mixed", 5, 2.0, 12),
    ("mixed", 4, 1.0, 12),
    ("mixed", 4, 1.5, 12),
    ("mixed", 4, 2.0, 12),
    ("mixed", 5, 1.5, 14),
    ("mixed", 5, 1.5, 10),
    ("mixed", 5, 1.5, 8),
]


def evaluate(summaries, stream, dataset, H_test, setting):
    """A_avg, A_T and the largest upload with one way of encoding."""
    precision, bits, slope, sum_bits = setting
    agg = fedran.Aggregator(H_test.shape[1])
    accuracies, largest = [], 0
    for t in range(len(stream.tasks)):
        for k in range(stream.n_clients):
            with (
                mock.patch.object(quantise, "SLOPE", slope),
                mock.patch.object(summary_codec, "SUM_BITS", sum_bits),
            ):
                blob = fedran.encode(summaries[t, k], precision, bits=bits)
                agg.absorb(fedran.decode(blob), client=str(k), task=str(t))
            largest = max(largest, len(blob))
        rows = np.isin(dataset.y_test, stream.seen(t))
        right = agg.solve().predict(H_test[rows]) == dataset.y_test[rows]
        accuracies.append(100 * right.mean())
    return np.mean(accuracies), accuracies[-1], largest


def main():
    dataset = read_feature_file(data_file("features/cifar100-efficientnet_lite0.npz"))
    stream = make_stream(dataset.y_train, n_tasks=5, n_clients=5, beta=0.1, seed=1993)
    phi = fedran.RandomFeatures(dataset.X_train.shape[1], 8192)
    H_test = phi(dataset.X_test)
    summaries = {
        (t, k): fedran.summarize(phi(dataset.X_train[rows]), dataset.y_train[rows], 256)
        for t, task in enumerate(stream.tasks)
        for k, rows in enumerate(task.rows)
    }
    lines = [
        "# Bits of an upload",
        "",
        f"Made by `make bench-precision` on {datetime.date.today()}: CIFAR-100 "
        "features, 5 tasks, 5 clients, Dirichlet 0.1, M = 8192, r = 256, stream seed 1993. "
        "The slope is the number of bits that a column gains when its singular value doubles.",
        "",
        "| precision | mean bits | slope | bits of class sums | A_avg | A_T | largest upload |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting in SETTINGS:
        a, t, size = evaluate(summaries, stream, dataset, H_test, setting)
        precision, bits, slope, sums = setting
        extra = f"{bits} | {slope} | {sums}" if precision == "mixed" else "- | - | -"
        lines.append(f"| {precision} | {extra} | {a:.2f} | {t:.2f} | {size / 2**20:.2f} MiB |")
        print(lines[-1], flush=True)
    (RESULTS / "precision.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
