"""Heads that learn each task's classes apart, beside the nearest class mean, on frozen features.

    FEDRAN_DATA=... python benchmarks/task_logits.py
    FEDRAN_DATA=... python benchmarks/task_logits.py --dataset vtab50-vit_ti16 --batch 32
    FEDRAN_DATA=... python benchmarks/task_logits.py --split

Prompt methods train the logits of a task's own classes against each other, never against those of
other tasks. This measures what that costs where features do not change: the head of the prompt
methods alone, on features of ViT-Ti. Tasks have ten classes. A fifth of the training rows of every
class is held out. Test rows are never read. One line of a Markdown table per classifier: accuracy
within the classes of the row's own task, and among all classes. About a minute on one core.

``--split`` measures instead what the division of the rows among five clients costs, for three beta.
The second line of each takes from the scores of every task their mean over the task's classes. That
changes nothing within a task, so what it gains was lost between tasks. The third line is a head
whose clients also send the Gram of their features, by which the server merges as in LoRM.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from choosing import split, training_rows
from fedran_bench.methods.prompted.base import PromptedMethod
from fedran_bench.methods.prompted.frozen_vit import Embedded
from fedran_bench.methods.prompted.lora import pack_symmetric, unpack_symmetric
from fedran_bench.methods.prompted.lorm import LoRM, damped, merge
from fedran_bench.methods.prompted.steps import with_rows
from fedran_bench.methods.protocol import ClientData, Spec
from fedran_bench.methods.trained.fedavg import ServerState
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights
from fedran_bench.methods.trained.local_training import ClientRound
from fedran_bench.methods.trained.weights import average
from fedran_bench.streams import Stream, make_stream

BETA, SEED, PER_TASK = 0.5, 101, 10
"""The seed is none of the seeds of the reported streams."""
FEDERATED = {"n_rounds": 5, "epochs": 5}
ALONE = {"n_rounds": 1, "epochs": 10}


@dataclass(frozen=True)
class HeadOnly(PromptedMethod):
    """The head and the training of the prompt methods, on features instead of images."""

    title = "Head only"

    def first_trained(self, task: int, known: int) -> dict[str, int]:  # noqa: ARG002
        """The rows of the new classes."""
        return {"head.weight": known, "head.bias": known}

    def embedded(self, X: NDArray[Any]) -> Embedded:
        """The features themselves."""
        return Embedded(torch.zeros(len(X), 0), torch.tensor(X, dtype=torch.float32))

    def features(self, weights: Weights, X: Embedded, task: Any = None) -> Tensor:  # noqa: ARG002
        """The features themselves."""
        return X.query


@dataclass(frozen=True)
class MergedHead(HeadOnly):
    """The head whose outputs are nearest to those of the clients' heads, as LoRM merges it."""

    title = "Head only, merged by Grams"

    def train(self, client: ClientRound) -> tuple[Weights, int]:
        """The trained rows, and the Gram of the features."""
        sent, n = super().train(client)
        Z = client.rows.X.query
        return {**sent, "gram": pack_symmetric(damped(Z.T @ Z, LoRM.damping))}, n

    def expected_upload(self, state: ServerState) -> Weights:
        """The rows of the new classes, and a packed Gram."""
        width = state.weights["head.weight"].shape[1]
        gram = torch.empty(width * (width + 1) // 2)
        return {**super().expected_upload(state), "gram": gram}

    def combine(self, state: ServerState, sent: list[tuple[Weights, int]]) -> Weights:
        """Merged rows; the bias is an average."""
        width = state.weights["head.weight"].shape[1]
        grams = [unpack_symmetric(w["gram"], width) for w, _ in sent]
        rows = merge([w["head.weight"] for w, _ in sent], grams)
        biases = average([({"head.bias": w["head.bias"]}, n) for w, n in sent], self.averaging)
        return with_rows(state.weights, {"head.weight": rows, **biases})


def trained_scores(
    method: HeadOnly, X: NDArray[Any], y: NDArray[Any], stream: Stream, X_test: NDArray[Any]
) -> NDArray[Any]:
    """Scores (n, C) after all tasks, in the order of the stream's classes."""
    clients = tuple(f"client-{k}" for k in range(stream.n_clients))
    state = method.init(Spec(X.shape[1], tuple(t.classes for t in stream.tasks), clients), 0)
    for t, task in enumerate(stream.tasks):
        for r in range(method.rounds(t)):
            message, uploads = method.broadcast(state, t, r), {}
            for name, rows in zip(clients, task.rows, strict=True):
                data = ClientData(name, str(t), X[rows], y[rows])
                _, uploads[name] = method.client(None, message, data, 0)
            state = method.aggregate(state, t, r, uploads)
    return np.asarray(method.scores(state, X_test).numpy())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dataset", default="cifar100-vit_ti16")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--split", action="store_true", help="heads of five clients, by beta")
    args = parser.parse_args()
    X, y = training_rows(args.dataset)
    kept, held_out = split(y)
    X_test, y_test, X, y = X[held_out], y[held_out], X[kept], y[kept]
    n_tasks = len(np.unique(y)) // PER_TASK
    tasks = {
        5: make_stream(y, n_tasks=n_tasks, n_clients=5, beta=BETA, seed=SEED),
        1: make_stream(y, n_tasks=n_tasks, n_clients=1, partitioner="iid", seed=SEED),
    }
    order = [c for task in tasks[5].tasks for c in task.classes]
    truth = np.array([order.index(c) for c in y_test])

    def show(name: str, clients: int, scores: NDArray[Any]) -> None:
        own = np.arange(len(order)) // PER_TASK == (truth // PER_TASK)[:, None]
        within = np.where(own, scores, -np.inf).argmax(1) == truth
        everywhere = scores.argmax(1) == truth
        row = (100 * within.mean(), 100 * everywhere.mean())
        print(f"| {name} | {clients} | {row[0]:.1f} | {row[1]:.1f} |", flush=True)

    print("| classifier | clients | within the task | all classes |\n|---|---|---|---|")
    means = np.stack([X[y == c].mean(0) for c in order])
    show("nearest class mean", 5, X_test @ (means / np.linalg.norm(means, axis=1)[:, None]).T)
    if args.split:
        for beta in (0.1, 0.5, 1.0):
            stream = make_stream(y, n_tasks=n_tasks, n_clients=5, beta=beta, seed=SEED)
            method = HeadOnly(head_lr=0.002, batch=args.batch, **FEDERATED)
            scores = trained_scores(method, X, y, stream, X_test)
            show(f"head, task by task, beta {beta:g}", 5, scores)
            task_means = scores.reshape(len(scores), n_tasks, PER_TASK).mean(2)
            show(
                "the same, minus the mean score per task",
                5,
                scores - task_means.repeat(PER_TASK, 1),
            )
            merged = MergedHead(head_lr=0.002, batch=args.batch, **FEDERATED)
            show("merged by Grams", 5, trained_scores(merged, X, y, stream, X_test))
        return
    for clients, schedule in ((5, FEDERATED), (1, ALONE)):
        for rate in (0.0005, 0.002):
            method = HeadOnly(head_lr=rate, batch=args.batch, **schedule)
            scores = trained_scores(method, X, y, tasks[clients], X_test)
            show(f"head, task by task, `head_lr` {rate:g}", clients, scores)
    joint = make_stream(y, n_tasks=1, n_clients=1, partitioner="iid", seed=SEED)
    scores = trained_scores(
        HeadOnly(head_lr=0.0005, batch=args.batch, **ALONE), X, y, joint, X_test
    )
    columns = [list(joint.tasks[0].classes).index(c) for c in order]
    show("head, all classes in one task, `head_lr` 0.0005", 1, scores[:, columns])


if __name__ == "__main__":
    main()
