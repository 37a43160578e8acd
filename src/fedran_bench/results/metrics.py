"""Figures of one result: training regime, forgetting, bytes, seconds, budgets."""

from __future__ import annotations

import numpy as np

from fedran_bench.results.result import Result

PROMPTED = frozenset({"fed-dualprompt", "fed-codaprompt", "fed-cprompt", "pilora", "lorm"})
"""Methods that train prompts or LoRA matrices of a frozen ViT, and a classifier on it."""


def is_trained(result: Result) -> bool:
    """Whether the model was trained with gradients."""
    return result.family == "trained"


def is_head(result: Result) -> bool:
    """Whether only a linear head was trained, on frozen features."""
    return is_trained(result) and result.params.get("network") == "head"


def is_prompted(result: Result) -> bool:
    """Whether a few tensors of a frozen ViT were trained."""
    return is_trained(result) and result.key in PROMPTED


def is_fine_tuned(result: Result) -> bool:
    """Whether an analytic method ran on a network that was fine-tuned in task 0."""
    return "task0" in result.params


def on_images(result: Result) -> bool:
    """Whether a whole network was trained on images."""
    return is_trained(result) and not is_head(result) and not is_prompted(result)


def has_moving_features(result: Result) -> bool:
    """Whether training changes the features in every task, so that they drift."""
    return on_images(result) or is_prompted(result)


def forgetting(result: Result) -> float | None:
    """Best accuracy on a task before the end minus the final one, in points; None after one task.

    The mean over all tasks but the last.

    >>> import types
    >>> forgetting(types.SimpleNamespace(acc=[[0.9], [0.8, 0.7], [0.6, 0.7, 0.5]]))
    15.0
    """
    *before, last = result.acc
    lost = [max(row[j] for row in before[j:]) - last[j] for j in range(len(before))]
    return round(100.0 * float(np.mean(lost)), 9) if lost else None


def max_download(result: Result) -> int:
    """The largest download of any client in any task, including the last classifier."""
    return max(result.bytes_down_final, *(max(t.bytes_down) for t in result.tasks))


def formula_upload(result: Result) -> int | None:
    """The largest upload as the method's paper counts it."""
    counts = [t.formula_bytes for t in result.tasks if t.formula_bytes is not None]
    return max(counts) if counts else None


def client_seconds(result: Result) -> float:
    """Mean seconds of a client, over clients and tasks."""
    return float(np.mean([np.mean(t.seconds.client) for t in result.tasks]))


def server_seconds(result: Result) -> float:
    """Mean seconds of the server, over tasks."""
    return float(np.mean([t.seconds.server for t in result.tasks]))


def task_seconds(result: Result) -> float:
    """The paper's Time: mean over tasks of (mean client + server), without the forward pass."""
    return client_seconds(result) + server_seconds(result)


def budgets_met(result: Result) -> dict[str, bool]:
    """For each limit that was set, whether the run stayed below it."""
    measured = {
        "bytes": float(result.max_upload),
        "seconds": task_seconds(result),
        "drift": max(result.drift, default=np.inf if has_moving_features(result) else 0.0),
    }
    return {name: measured[name] <= ceiling for name, ceiling in result.budgets.items()}
