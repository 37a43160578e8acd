"""Figures of one result: training regime, forgetting, transfer, bytes, seconds, budgets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedran.bench.results.result import Result

PROMPTED = frozenset({"fed-dualprompt", "fed-codaprompt", "fed-cprompt", "pilora", "lorm"})
"""Methods that train prompts or LoRA matrices of a frozen ViT, and a classifier on it."""
NETWORKS = {
    "head": "linear head",
    "small": "small network",
    "resnet18": "ResNet-18",
    "resnet18-7x7": "ResNet-18, 7x7 stem",
}


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


def network(result: Result) -> str:
    """The network as text, or '' where none is recorded.

    >>> from types import SimpleNamespace as R
    >>> network(R(family="trained", params={"network": "resnet18"}))
    'ResNet-18'
    >>> network(R(family="trained", params={"weights": "vit.safetensors"}))
    'frozen ViT'
    """
    name = str(result.params.get("network", ""))
    if not name and is_trained(result) and result.params.get("weights"):
        return "frozen ViT"
    return NETWORKS.get(name, name)


def start(result: Result) -> str:
    """What training started from."""
    if is_head(result):
        return "frozen features"
    return str(result.params.get("weights") or "random weights")


def rounds_per_task(result: Result) -> int:
    """Training rounds per task, without a last round that only sends the model.

    >>> from types import SimpleNamespace as R
    >>> rounds_per_task(R(params={"n_rounds": 10}, tasks=[R(rounds=11)]))
    10
    >>> rounds_per_task(R(params={}, tasks=[R(rounds=1)]))
    1
    """
    n_rounds = result.params.get("n_rounds")
    return n_rounds if isinstance(n_rounds, int) and n_rounds > 0 else result.tasks[0].rounds


def forgetting(result: Result) -> list[float]:
    """For each task but the last: its best accuracy before the end minus the final one, in points.

    >>> import types
    >>> forgetting(types.SimpleNamespace(acc=[[0.9], [0.8, 0.7], [0.6, 0.7, 0.5]]))
    [30.0, 0.0]
    """
    last = result.acc[-1]
    return [
        round(100.0 * (max(row[j] for row in result.acc[j:-1]) - last[j]), 9)
        for j in range(len(last) - 1)
    ]


def backward_transfer(result: Result) -> list[float]:
    """For each task but the last: final accuracy minus that right after the task, in points."""
    last = result.acc[-1]
    return [round(100.0 * (last[j] - result.acc[j][j]), 9) for j in range(len(last) - 1)]


def class_changes(result: Result) -> list[tuple[float, float] | None]:
    """Forgetting and backward transfer per class in the order of the stream.

    None for the classes of the last task.
    """
    changes: list[tuple[float, float] | None] = []
    for c, rows in enumerate(result.class_rows):
        right = [row[c] for row in result.class_right if len(row) > c]
        if len(right) < 2 or rows == 0:
            changes.append(None)
        else:
            forgotten, transfer = max(right[:-1]) - right[-1], right[-1] - right[0]
            changes.append((100.0 * forgotten / rows, 100.0 * transfer / rows))
    return changes


def mean_or_none(values: Sequence[float]) -> float | None:
    """The mean, or None if there are no values."""
    return float(np.mean(values)) if len(values) else None


def total_upload(result: Result) -> int:
    """Bytes sent by all clients in all tasks."""
    return sum(sum(t.bytes_up) for t in result.tasks)


def cumulative_upload(result: Result) -> tuple[list[int], list[float]]:
    """Rounds and bytes of the mean client so far, after each task."""
    rounds = np.cumsum([t.rounds for t in result.tasks])
    sent = np.cumsum([np.mean(t.bytes_up) for t in result.tasks])
    return [int(r) for r in rounds], [float(b) for b in sent]


def total_download(result: Result) -> int:
    """Bytes received by all clients: before every round, and the last classifier."""
    clients = len(result.tasks[0].bytes_down)
    return sum(sum(t.bytes_down) for t in result.tasks) + clients * result.bytes_down_final


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


def extraction_seconds(result: Result) -> float | None:
    """Mean forward pass of a client and task, where the backbone was timed."""
    parts = [np.mean(t.seconds.extraction) for t in result.tasks if t.seconds.extraction]
    return float(np.mean(parts)) if parts else None


def task_seconds(result: Result) -> float:
    """The paper's Time: mean over tasks of (mean client + server), without the forward pass."""
    return client_seconds(result) + server_seconds(result)


def seconds_with_forward_pass(result: Result) -> float | None:
    """Time with the forward pass, where known. Methods on images include it in their Time."""
    if has_moving_features(result) or is_fine_tuned(result):
        return task_seconds(result)
    forward = extraction_seconds(result)
    return None if forward is None else task_seconds(result) + forward


def seconds_at_rounds(result: Result, rounds: int) -> float:
    """Time if the clients trained for so many rounds, with the server's seconds as measured."""
    return client_seconds(result) * rounds / rounds_per_task(result) + server_seconds(result)


def upload_at_rounds(result: Result, rounds: int) -> float:
    """The largest upload if there were so many rounds."""
    return result.max_upload * rounds / rounds_per_task(result)


def peak_memory(result: Result) -> int | None:
    """Peak resident memory of the run, bytes."""
    peaks = [t.peak_rss for t in result.tasks if t.peak_rss is not None]
    return max(peaks) if peaks else None


def pseudo_labels(result: Result) -> tuple[float | None, float | None]:
    """Mean acceptance and precision over the clients and tasks that had unlabelled rows."""
    accepted = [a for t in result.tasks for a in t.accepted or [] if a is not None]
    precision = [p for t in result.tasks for p in t.precision or [] if p is not None]
    return mean_or_none(accepted), mean_or_none(precision)


def label_rates(result: Result) -> tuple[float, float] | None:
    """The least and the largest share of labelled rows of any client and task."""
    rates = [v for t in result.tasks for v in t.label_rate or [] if v is not None]
    return (min(rates), max(rates)) if rates else None


def budgets_met(result: Result) -> dict[str, bool]:
    """For each limit that was set, whether the run stayed below it."""
    measured = {
        "bytes": float(result.max_upload),
        "seconds": task_seconds(result),
        "drift": max(result.drift, default=np.inf if has_moving_features(result) else 0.0),
    }
    return {name: measured[name] <= ceiling for name, ceiling in result.budgets.items()}
