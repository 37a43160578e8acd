"""What rows that sites hold out cost, and how well they calibrate a head of groups of rows.

    FEDRAN_DATA=... python benchmarks/held_out.py

Five sites (beta 0.1) send points of 80 % of the training rows of CIFAR-100 (ViT-Ti/16) in ten
tasks. Each holds out rows as it does in a federation (`hold_out`), and reports histograms of the
scores that the head gives to them. Probabilities are judged on the other training rows. Prints the
table of docs/explanation/calibration.md; takes about ten minutes on one core.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.special import log_softmax

import fedran
from choose_points import federation
from fedran.core.points import condense, join
from fedran.core.solve.calibration import Calibration
from fedran.data.rows import Rows
from fedran.federation.protocol.class_counts import add_calibrations, calibration_of
from fedran.federation.site.pseudo_labels import held_out

DATASET, SITES, LANDMARKS = "cifar100-vit_ti16", 5, 2048
ALPHA = 0.1


def measured(parts: list[Any], X: Any, y: Any, groups: tuple[int, int], share: float) -> str:
    """Accuracy, share of the rows that is held out, and the quality of the probabilities."""
    settings = SimpleNamespace(validation=None, hold_out=share)
    sent, tests = [], {f"site-{k}": [[], []] for k in range(SITES)}
    accepted: dict[str, dict[Any, int]] = {site: {} for site in tests}
    for i, (Z, labels) in enumerate(parts):
        site, names = f"site-{i % SITES}", labels.tolist()
        held = held_out(Rows(Z, names), f"task-{i // SITES}", settings)  # type: ignore[arg-type]
        rest = np.setdiff1d(np.arange(len(Z)), held)
        points = condense(Z[rest], [names[j] for j in rest], *groups)
        sent.append(fedran.decode(fedran.encode(points), fedran.Points))
        tests[site][0].append(Z[held])
        tests[site][1] += [names[j] for j in held]
        for label, n in points.rows_per_class().items():
            accepted[site][label] = accepted[site].get(label, 0) + n
    server = fedran.Aggregator()
    server.absorb(join(sent), client="all", task="all")
    head = server.solve(landmarks=LANDMARKS)
    scores = np.asarray(head.scores(X), dtype=np.float64)
    codes = np.searchsorted(head.classes, y)
    right = scores.argmax(axis=1) == codes
    told = {
        site: calibration_of(head.scores(np.concatenate(rows)), head.classes, labels)
        for site, (rows, labels) in tests.items()
        if labels
    }
    calibration: Calibration | None = add_calibrations(told, accepted) or head.calibration
    n_held = sum(len(labels) for _, labels in tests.values())
    found = f"{100 * right.mean():.2f} | {n_held} | "
    if calibration is None:
        return found + "- | - | - | -"
    rows = np.arange(len(y))
    losses = [
        -log_softmax(scores / T, axis=1)[rows, codes].mean()
        for T in (calibration.temperature, *np.geomspace(0.01, 1.0, 60))
    ]
    sure = np.exp(log_softmax(scores / calibration.temperature, axis=1)).max(axis=1)
    of = np.minimum((sure * 15).astype(int), 14)
    error = sum(abs(np.sum(sure[of == b] - right[of == b])) for b in range(15)) / len(y)
    sets = replace(head, calibration=calibration).prediction_sets(X, ALPHA)
    covered = 100 * sets[rows, codes].mean()
    return found + f"{losses[0]:.3f} | {min(losses[1:]):.3f} | {error:.3f} | {covered:.1f}"


def main() -> None:
    parts, X, y = federation(DATASET, 101, None)
    print("| points | held out | accuracy | rows | log loss | best | error | covered |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, groups in (("every row", (1, 1)), ("groups of at least 5", (5, 5))):
        for share in (0.0, 0.05):
            cells = measured(parts, X, y, groups, share)
            print(f"| {name} | {100 * share:g} % | {cells} |", flush=True)


if __name__ == "__main__":
    main()
