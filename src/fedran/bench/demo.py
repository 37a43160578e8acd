"""The demo: four methods on scikit-learn's digits, the whole way of the data in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fedran.bench.result import Result
from fedran.bench.runner import run, steps
from fedran.data.digits import digits
from fedran.data.stream import Stream, make_stream
from fedran.methods.exact import Exact
from fedran.methods.fedran import FedRAN
from fedran.methods.fedran_paper import FedRANPaper
from fedran.methods.ncm import NearestClassMean
from fedran.methods.protocol import Method

OUT_FEATURES = 1024
RANK = 64
PAPER_RANK = 256  # M / 4, as in the paper
N_TASKS, N_CLIENTS, BETA, SEED = 5, 5, 0.1, 1993


def demo_stream() -> Stream:
    """5 clients, 5 tasks of 2 classes, Dirichlet 0.1."""
    return make_stream(digits().y_train, n_tasks=N_TASKS, n_clients=N_CLIENTS, beta=BETA, seed=SEED)


def demo_methods() -> list[Method[Any]]:
    """FedRAN, the paper's settings at its own rank, the exact Gram, nearest class mean."""
    return [
        FedRAN(OUT_FEATURES, RANK),
        FedRANPaper(OUT_FEATURES, PAPER_RANK),
        Exact(OUT_FEATURES),
        NearestClassMean(),
    ]


def demo_steps() -> int:
    """How often ``run_demo`` reports progress."""
    return len(demo_methods()) * N_TASKS * (N_CLIENTS + 1)


def run_demo(progress: Callable[[str], None] = lambda _: None) -> Iterator[Result]:
    """The results, one method after the other; the same accuracies and bytes every time."""
    dataset, stream = digits(), demo_stream()
    assert steps(stream) * len(demo_methods()) == demo_steps()
    for method in demo_methods():
        yield run(method, dataset, stream, progress=_prefixed(progress, method.name))


def _prefixed(progress: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda what: progress(f"{name}, {what}")
