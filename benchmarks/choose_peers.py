"""Choose Fed3R's ridge and FedCOF's shrinkage on held-out training rows: results/peers.md.

    FEDRAN_DATA=... python benchmarks/choose_peers.py

Both constants are published for other backbones. Here a fifth of the training rows of every class
is held out, the rest is split over five clients (beta 0.5) in one task, and the accuracy on the
held-out rows is written for every constant of a grid. Test rows are never read. It takes a
few minutes.
"""

from __future__ import annotations

import datetime

from choosing import RESULTS, split, training_rows
from fedran.data.catalogue import dataset_title
from fedran.data.dataset import Dataset
from fedran_bench.methods.registry import make_method
from fedran_bench.run.runner import PreparedJob, run
from fedran_bench.streams import make_stream

DATASETS = (
    "cifar100-efficientnet_lite0",
    "cifar100-vit_ti16",
    "vtab50-efficientnet_lite0",
    "har-dsa19",
)
GRIDS = {
    "fed3r": ("lam", [10.0**k for k in range(-2, 7)]),
    "fedcof": ("gamma", [0.001, 0.01, 0.1, 1.0, 10.0]),
}
SEED = 101


def accuracy(dataset: str, key: str, setting: str, value: float) -> float:
    """Percent of the held-out rows that one method predicts, trained on the others."""
    X, y = training_rows(dataset)
    train, held_out = split(y)
    data = Dataset(dataset, "features", X[train], y[train], X[held_out], y[held_out])
    stream = make_stream(data.y_train, n_tasks=1, n_clients=5, beta=0.5, seed=SEED)
    method = make_method(key, {setting: value})
    return run(PreparedJob(key, method, data, stream, seed=SEED)).A_T


def main() -> None:
    lines = [
        "# Constants of the peers, on held-out training rows",
        "",
        f"Written by `python benchmarks/choose_peers.py` on {datetime.date.today()}: accuracy on a",
        "held-out fifth of the training rows, all classes in one task, five clients, beta 0.5.",
        "The configurations use the best value of each row, except where it is within 0.3 points",
        "of the published one (Fed3R: 0.01, FedCOF: 0.1 or 1). After a LayerNorm, features depend",
        "linearly on Fed3R's column of ones. At the published constant the weights in that",
        "direction dominate the norms by which Fed3R divides.",
    ]
    for key, (setting, grid) in GRIDS.items():
        lines += ["", f"## {key}: {setting}", ""]
        lines += [f"| dataset | {' | '.join(f'{v:g}' for v in grid)} |"]
        lines += [f"|---|{'---:|' * len(grid)}"]
        for dataset in DATASETS:
            cells = [f"{accuracy(dataset, key, setting, value):.2f}" for value in grid]
            lines.append(f"| {dataset_title(dataset)} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    (RESULTS / "peers.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
