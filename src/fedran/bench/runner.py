"""Runs one method over one stream, measuring bytes and seconds around its calls."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from fedran.bench.result import Result, TaskRecord
from fedran.data.dataset import Dataset
from fedran.data.stream import Stream
from fedran.methods.protocol import ClientData, Method, Spec

Progress = Callable[[str], None]
"""Called after each step with what was done."""


def steps(stream: Stream) -> int:
    """How often ``run`` reports progress: once a client, once a server, per task."""
    return len(stream.tasks) * (stream.n_clients + 1)


def run(
    method: Method[Any],
    dataset: Dataset,
    stream: Stream,
    *,
    seed: int = 0,
    progress: Progress = lambda _: None,
) -> Result:
    """Every task: clients one after the other, then the server, then a test over all classes."""
    if method.input != dataset.kind:
        raise ValueError(f"{method.name} takes {method.input}, {dataset.name} holds {dataset.kind}")
    clients = tuple(f"client-{k}" for k in range(stream.n_clients))
    spec = Spec(dataset.X_train.shape[-1], tuple(t.classes for t in stream.tasks), clients)
    state = method.init(spec, seed)
    cstates: dict[str, Any] = dict.fromkeys(clients)
    test = [np.flatnonzero(np.isin(dataset.y_test, list(t.classes))) for t in stream.tasks]
    acc: list[list[float]] = []
    records = []
    for t in range(len(stream.tasks)):
        state, record = _task(method, state, cstates, dataset, stream, t, seed, progress)
        records.append(record)
        rows = np.concatenate(test[: t + 1])
        right = method.predict(state, dataset.X_test[rows]) == dataset.y_test[rows]
        parts = np.split(right, np.cumsum([len(r) for r in test[:t]]))
        acc.append([float(p.mean()) for p in parts])
        progress(f"task {t + 1}: solved and tested")
    return Result(
        method=method.name,
        params=method.params(),
        claims=asdict(method.claims),
        seeds={**stream.seeds, "projection": seed},
        hashes={"stream": stream.hash, "features": dataset.hash},
        acc=acc,
        test_rows=[len(r) for r in test],
        tasks=records,
        machine=_machine(method),
        bytes_down_final=len(method.broadcast(state, len(stream.tasks), 0)),
    )


def _machine(method: Method[Any]) -> str:
    device = getattr(method, "device", None)
    return f"{platform.system()} {platform.machine()}" + (f", {device}" if device else "")


def _task(
    method: Method[Any],
    state: Any,
    cstates: dict[str, Any],
    dataset: Dataset,
    stream: Stream,
    t: int,
    seed: int,
    progress: Progress,
) -> tuple[Any, TaskRecord]:
    n = stream.n_clients
    up, down, client_seconds, server_seconds = [0] * n, [0] * n, [0.0] * n, 0.0
    for round_ in range(method.rounds(t)):
        message = method.broadcast(state, t, round_)
        uploads = {}
        for k, (name, rows) in enumerate(zip(cstates, stream.tasks[t].rows, strict=True)):
            data = ClientData(name, str(t), dataset.X_train[rows], dataset.y_train[rows])
            start = time.perf_counter()
            cstates[name], uploads[name] = method.client(cstates[name], message, data, seed)
            client_seconds[k] += time.perf_counter() - start
            up[k] += len(uploads[name])
            down[k] += len(message)
            progress(f"task {t + 1}: {name} sent {len(uploads[name])} bytes")
        start = time.perf_counter()
        state = method.aggregate(state, t, round_, uploads)
        server_seconds += time.perf_counter() - start
    diagnosis = getattr(getattr(state, "head", None), "diagnosis", None)
    return state, TaskRecord(
        up,
        down,
        client_seconds,
        server_seconds,
        f=None if diagnosis is None else diagnosis.f,
        lam=None if diagnosis is None else diagnosis.lam,
    )
