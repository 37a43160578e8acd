"""The demo: five methods on scikit-learn's digits, from the data to the results in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fedran.data.catalogue import digits
from fedran_bench.methods.registry import make_method
from fedran_bench.results.result import Result
from fedran_bench.run.runner import PreparedJob, run
from fedran_bench.streams.stream import Stream, make_stream

OUT_FEATURES = 1024
RANK = 64
PAPER_RANK = 256  # M / 4, as in the paper
N_TASKS, N_CLIENTS, BETA, SEED = 5, 5, 0.1, 1993


def demo_stream() -> Stream:
    """5 clients, 5 tasks of 2 classes, Dirichlet 0.1."""
    return make_stream(digits().y_train, n_tasks=N_TASKS, n_clients=N_CLIENTS, beta=BETA, seed=SEED)


def demo_runs() -> list[PreparedJob]:
    """FedRAN with both messages and with the paper's settings, exact Gram, nearest means."""
    dataset, stream = digits(), demo_stream()
    chosen: list[tuple[str, dict[str, Any]]] = [
        ("fedran", {"out_features": OUT_FEATURES, "rank": RANK}),
        ("fedran-mixture", {"out_features": OUT_FEATURES}),
        ("fedran-paper", {"out_features": OUT_FEATURES, "rank": PAPER_RANK}),
        ("exact", {"out_features": OUT_FEATURES}),
        ("fedncm", {}),
    ]
    return [PreparedJob(key, make_method(key, params), dataset, stream) for key, params in chosen]


def demo_steps() -> int:
    """How often ``run_demo`` reports progress."""
    return sum(prepared.steps for prepared in demo_runs())


def run_demo(progress: Callable[[str], None] = lambda _: None) -> Iterator[Result]:
    """The results, one method after the other. Accuracies and bytes are the same every time."""
    for prepared in demo_runs():

        def with_name(step: str, name: str = prepared.method.name) -> None:
            progress(f"{name}, {step}")

        yield run(prepared, progress=with_name)
