"""Out-of-scope sentences of CLINC150: novelty and "don't know" of kernel heads and linear heads.

    FEDRAN_DATA=... python benchmarks/out_of_scope.py

Five clients send one message per task (5 tasks, beta 0.1, seed 1993), and one head is solved from
all of them. The 4,500 test sentences of the 150 intents are in scope. The 1,000 sentences of the
array ``oos`` have none of these intents and are in no message. Nothing is chosen on either. Heads
of single rows are calibrated by leave-one-out, the others on a twentieth of the training rows,
which no message holds. Writes results/out_of_scope.md.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

import fedran
from choosing import RESULTS, split
from fedran.data.catalogue import data_file, load_dataset
from fedran.data.feature_file import load_arrays
from fedran_bench.streams import make_stream

NAME = "clinc150-minilm"
ERROR = 0.05
"""Share of the answers that may be wrong."""
REJECT = 0.01
"""Of ``abstain``: share of the sentences in scope that may get a wrong answer."""
WIDTH, RANK, DIRECTIONS = 4096, 64, 64


class Sites:
    """What all clients send in all tasks, of all training rows or of those not held out."""

    def __init__(self, hold_out: bool) -> None:
        data = load_dataset(NAME)
        kept, self.held = split(data.y_train, 0.05)
        rows = kept if hold_out else np.arange(len(data.y_train))
        self.X, self.y = data.X_train, data.y_train
        stream = make_stream(self.y[rows], n_tasks=5, n_clients=5, beta=0.1, seed=1993)
        self.parts = [
            (f"client-{k}", f"task-{t}", rows[own])
            for t, task in enumerate(stream.tasks)
            for k, own in enumerate(task.rows)
        ]

    def server(self, phi: Any, message: Callable[[Any, Any], Any], **encoding: Any) -> Any:
        """An aggregator of all messages, as decoded."""
        server = fedran.Aggregator(fingerprint=phi.fingerprint)
        for client, task, rows in self.parts:
            blob = fedran.encode(message(phi(self.X[rows]), self.y[rows]), **encoding)
            server.absorb(fedran.decode(blob), client=client, task=task)
        return server

    def calibrated(self, head: fedran.Head, phi: Any) -> fedran.Head:
        """The head, calibrated on the rows that are held out."""
        return head.calibrate(phi(self.X[self.held]), self.y[self.held])


def heads() -> Iterator[tuple[str, Any, fedran.Head]]:
    """The name, the feature map and the head of every row of the table."""
    every, most = Sites(hold_out=False), Sites(hold_out=True)
    d = every.X.shape[1]
    phi = fedran.KernelFeatures(d, kind="cosine", source=NAME)

    def condensed(size: int) -> Callable[[Any, Any], Any]:
        return lambda H, y: fedran.condense(H, y, size, fingerprint=phi.fingerprint)

    server = every.server(phi, condensed(1))
    yield "points, every row, all as support", phi, server.solve(landmarks=None)
    yield "points, every row, 4096 landmarks", phi, server.solve(landmarks=4096)
    grouped = most.server(phi, condensed(5)).solve(landmarks=None)
    yield "points, groups of 5", phi, most.calibrated(grouped, phi)
    wide = fedran.RandomFeatures(d, WIDTH, kind="cosine", seed=0, source=NAME)
    sums = most.server(
        wide, lambda H, y: fedran.summarize(H, y, rank=RANK, fingerprint=wide.fingerprint)
    )
    head = most.calibrated(sums.solve(novelty=DIRECTIONS), wide)
    yield f"summaries, M = {WIDTH}, rank {RANK}", wide, head


def coverage(confidence: np.ndarray, right: np.ndarray) -> float:
    """The largest share of rows, the most confident first, of which at most ``ERROR`` are wrong."""
    wrong = np.cumsum(~right[np.argsort(-confidence, kind="stable")])
    answered = np.flatnonzero(wrong <= ERROR * np.arange(1, len(right) + 1))
    return float(answered[-1] + 1) / len(right) if len(answered) else 0.0


def main() -> None:
    data = load_dataset(NAME)
    new = load_arrays(data_file(f"features/{NAME}.npz"))["oos"].astype(np.float32)
    X, outside = np.concatenate([data.X_test, new]), np.repeat([False, True], [4500, 1000])
    lines = []
    for name, phi, head in heads():
        H = phi(X)
        right = np.zeros(len(X), dtype=bool)
        right[~outside] = head.predict(H[~outside]) == data.y_test
        likely, novel = head.predict_proba(H).max(axis=1), head.novelty(H)
        unsure = head.abstain(H, REJECT)
        cells = (
            f"{100 * right[~outside].mean():.2f}",
            f"{roc_auc_score(outside, novel):.3f}",
            f"{roc_auc_score(outside, 1 - likely):.3f}",
            f"{100 * coverage(-novel, right):.1f}",
            f"{100 * coverage(likely, right):.1f}",
            f"{100 * np.mean(~unsure[~outside]):.1f}",
            f"{100 * np.mean(~unsure[~outside] & ~right[~outside]):.2f}",
            f"{100 * np.mean(~unsure[outside]):.1f}",
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    text = [
        "# Out-of-scope sentences (CLINC150, MiniLM)",
        "",
        f"Written by `python benchmarks/out_of_scope.py` on {datetime.date.today()}. 4,500 test",
        "sentences of the 150 intents are in scope, 1,000 sentences of no intent are out of scope.",
        "AUROC: how well novelty, or one minus the largest probability, tells them apart.",
        f"Coverage: the share of all 5,500 sentences that can be answered with at most {ERROR:.0%}",
        "of the answers wrong, where every answer out of scope is wrong. Decided: what",
        f'`head.abstain(rows, {REJECT})` does not leave at "don\'t know". It promises at most',
        f"{REJECT:.0%} wrong answers among the sentences in scope, and nothing about others.",
        "All in percent but AUROC.",
        "",
        "| head | accuracy | AUROC novelty | AUROC probability | coverage by novelty | coverage by "
        "probability | decided in scope | decided and wrong in scope | decided out of scope |",
        f"|---|{'---:|' * 8}",
        *lines,
    ]
    (RESULTS / "out_of_scope.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
