"""Leave-one-out in closed form beside solving again: FEDRAN_DATA=... python benchmarks/left_out.py

The closed form holds landmarks, scale and ridge fixed. Here rows and whole sites are really left
out and all three are made anew, as a new head would. Of a site, points count whose class another
site has too. Prints the table of docs/explanation/mathematics.md, in some minutes on one core.
"""

from __future__ import annotations

import numpy as np

import fedran
from choose_points import federation
from fedran.core.kernel import kernel
from fedran.core.points import condense, join
from fedran.core.solve.kernel_ridge import Labelled, LeftOut, solve_points
from fedran.core.solve.landmarks import LandmarkSolver
from fedran.core.solve.landmarks import landmarks as make_landmarks
from fedran_bench.results.result import dataset_title

CASES = (
    ("vtab50-efficientnet_lite0", None, 1, None),
    ("vtab50-efficientnet_lite0", None, 1, 300),
    ("vtab50-vit_ti16", None, 1, None),
    ("vtab50-vit_ti16", None, 5, None),
)
"""Dataset, training rows that are used, rows per group, landmarks."""
CLIENTS, ROWS = 5, 40
"""Sites, and rows that are left out one by one."""


def received(dataset: str, rows: int | None, group_size: int) -> tuple[Labelled, np.ndarray]:
    """The points of all clients and tasks, and the client of each."""
    parts = [
        fedran.decode(fedran.encode(condense(X, y.tolist(), group_size)), fedran.Points)
        for X, y in federation(dataset, 101, rows)[0]
    ]
    points = join(parts)
    client = [np.full(len(part.counts), i % CLIENTS) for i, part in enumerate(parts)]
    labels = [part.classes[c] for part in parts for c in part.codes]
    order = np.argsort([points.classes.index(label) for label in labels], kind="stable")
    n_classes = len(points.classes)
    found = Labelled.of(points.means, points.counts, points.codes, n_classes)
    return found, np.concatenate(client)[order]


def again(
    points: Labelled, left: np.ndarray, landmarks: int | None, asked: np.ndarray | None = None
) -> np.ndarray:
    """What a new head of all points but some says about these, or about a part of them."""
    others = np.setdiff1d(np.arange(len(points)), left)
    head = solve_points(points.take(others), landmarks)
    X = points.X[left if asked is None else asked]
    return np.asarray(kernel(X, head.support, head.scale) @ head.alpha)


def compared(points: Labelled, which: np.ndarray, fixed: np.ndarray, new: np.ndarray) -> str:
    """Accuracies of both in percent, the mean difference of scores, and of labels."""
    first, second = (100 * LeftOut(which, s).accuracy(points) for s in (fixed, new))
    other = 100 * np.mean(np.argmax(fixed, axis=1) != np.argmax(new, axis=1))
    return f"{first:.1f} | {second:.1f} | {np.abs(fixed - new).mean():.4f} | {other:.1f}"


def main() -> None:
    print("| points | left out | fixed | made anew | difference of scores | other labels |")
    print("|---|---|---:|---:|---:|---:|")
    for dataset, rows, size, landmarks in CASES:
        points, client = received(dataset, rows, size)
        head = solve_points(points, landmarks)
        what = dataset_title(dataset) + (f", groups of {size}" if size > 1 else "")
        what += f", {landmarks} landmarks" if landmarks else ""
        chosen = np.random.default_rng(0).permutation(len(head.left_out.points))[:ROWS]
        which = head.left_out.points[chosen]
        new = np.concatenate([again(points, np.array([i]), landmarks) for i in which])
        fixed = head.left_out.scores[chosen]
        print(
            f"| {what} | {len(which)} points, one by one |",
            compared(points, which, fixed, new),
            "|",
        )
        support = make_landmarks(points, landmarks or len(points))
        solver = LandmarkSolver.of(points, support, head.scale, head.ridge)
        asked, held, anew = [], [], []
        for k in range(CLIENTS):
            mine = np.flatnonzero(client == k)
            known = np.isin(points.codes[mine], points.codes[client != k])
            asked.append(mine[known])
            held.append(solver.without(points.take(mine), head.ridge)[known])
            anew.append(again(points, mine, landmarks, mine[known]))
        every, fixed, new = map(np.concatenate, (asked, held, anew))
        print(
            f"| | each of {CLIENTS} sites |", compared(points, every, fixed, new), "|", flush=True
        )


if __name__ == "__main__":
    main()
