r"""Run published code on small inputs and write its weights as a test fixture.

    python benchmarks/official_outputs.py --afl DIR --fed3r DIR --fedcof DIR --stsa DIR \
        --ranpac DIR --loranpac DIR OUT.json

Each DIR is a checkout of the repository at the commit in ``COMMITS``. Only the functions that
compute weights are executed: they are taken out of the source by name, because the modules around
them import data loaders and experiment trackers. Backbones are replaced by the identity and data
loaders by one batch per client. Everything runs on the CPU.

The committed fixture was made from transcriptions of these functions at these commits, because the
repositories could be read but not cloned. A run on real checkouts would confirm it.
"""

from __future__ import annotations

import argparse
import ast
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

COMMITS = {
    "afl": "ZHUANGHP/Analytic-federated-learning 1e7c2d9978430c6cde0708268dd03128f0bb6c1c",
    "fed3r": "Erosinho13/Fed3R c2a8e5de59e4b86efaa351c241a4a3357bcdab34",
    "fedcof": "dipamgoswami/FedCOF 4770a784aaa1d975cd68dee16109d3bf5e01534d",
    "stsa": "Yuqin-G/STSA 109fff7a3e3f5cdb9a1d8d71005bed1c4ecb9bce",
    "ranpac": "RanPAC/RanPAC 698e00ccf6982e0cbdb849fe95c6446eabfa61ec",
    "loranpac": "liangzu/loranpac 7c3557cd33a1d369b23e1205073e03ee6d9b1579",
}
CLASSES, WIDTH, CLIENTS = 4, 6, 3
RANDOM_FEATURES = 16


def functions(path: Path, names: set[str], **stand_ins: Any) -> SimpleNamespace:
    """The functions and classes with these names, without the rest of the module.

    ``stand_ins`` replace what the module imports.
    """
    tree = ast.parse(path.read_text())
    kept = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    tree.body = [n for n in kept if n.name in names]
    missing = names - {n.name for n in kept}
    if missing:
        raise ValueError(f"{path} has no {', '.join(sorted(missing))}")
    space: dict[str, Any] = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "np": np}
    space.update(BaseLearner=object, logging=logging, **stand_ins)
    exec("from abc import ABC, abstractmethod", space)
    exec(compile(tree, str(path), "exec"), space)
    return SimpleNamespace(**space)


def rows() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Features and labels of three clients; no client holds all four classes."""
    rng = np.random.default_rng(15)
    centres = rng.standard_normal((CLASSES, WIDTH))
    held = ([0, 1, 2] * 4, [1, 2, 3] * 5, [0, 3] * 3 + [2])
    X = [np.abs(centres[y] + 0.5 * rng.standard_normal((len(y), WIDTH))) for y in held]
    # Multiples of 1/64: the numbers in the fixture are exact in float32.
    features = [torch.tensor(np.rint(64 * x) / 64, dtype=torch.float32) for x in X]
    return features, [torch.tensor(y) for y in held]


def afl(folder: Path, gamma: float) -> dict[str, Any]:
    """Weights before and after the ridges are removed."""
    names = {"LinearAnalytic", "local_update", "aggregation", "clean_regularization"}
    code = functions(folder / "afl.py", names)
    args = SimpleNamespace(
        feat_size=WIDTH, num_classes=CLASSES, num_clients=CLIENTS, rg=gamma, gpu=None
    )
    model, head = torch.nn.Identity(), code.LinearAnalytic(WIDTH, CLASSES)
    parts = [code.local_update([part], model, head, args) for part in zip(*rows(), strict=True)]
    W, _, C = code.aggregation(*(list(column) for column in zip(*parts, strict=True)), args)
    return {
        "gamma": gamma,
        "ridge_kept": W.tolist(),
        "ridge_removed": code.clean_regularization(W, C, args).tolist(),
    }


def fed3r(folder: Path, lam: float) -> dict[str, Any]:
    """Normalised weights; the last row is the bias."""
    code = functions(folder / "src/fed3r.py", {"calc_ridge_params", "normalize_W", "fed3r_step"})
    A, b = lam * torch.eye(WIDTH + 1), torch.zeros(WIDTH + 1, CLASSES)
    for part in zip(*rows(), strict=True):
        A, b = code.fed3r_step(A, b, [part], torch.nn.Identity(), CLASSES, "cpu")
    W, bias = code.normalize_W(*code.calc_ridge_params(A, b))
    return {"lambda": lam, "weights": torch.cat([W, bias[None]]).tolist()}


def fedcof(folder: Path, gamma: float) -> dict[str, Any]:
    """Normalised weights of FedCOF, and of FedNCM, which sends the same."""
    names = {"Server", "Client", "FedCOFServer", "FedCOFClient", "FedNCMServer"}
    code = functions(folder / "federate_classes.py", names)
    sent = {}
    for k, (X, y) in enumerate(zip(*rows(), strict=True)):
        client = code.FedCOFClient(k, X, y)
        client.compute()
        sent[k] = client.send()
    servers = (
        code.FedCOFServer(sent, CLASSES, WIDTH, gamma),
        code.FedNCMServer(sent, CLASSES, WIDTH),
    )
    for server in servers:
        server.aggregate()
    weights, means = (server.get_classifier_weights().T.tolist() for server in servers)
    return {"gamma": gamma, "weights": weights, "fedncm": means}


def stsa(folder: Path, lam: float, dummies: int | None) -> dict[str, Any]:
    """Weights of the exact form, or with ``dummies`` chunks per client of STSA-E."""
    stand_ins = {"DataLoader": lambda part, **_: [part], "DatasetSplit": lambda _, part: part}
    names = {"STSA", "target2onehot"}
    code = functions(folder / "methods/STSA.py", names, **stand_ins)
    learner = code.STSA()
    learner.args = {
        **{"M": RANDOM_FEATURES, "nb_classes": CLASSES, "num_users": CLIENTS, "frac": 1.0},
        **{"local_bs": 128, "ridge": lam, "dummy": dummies},
    }
    learner.user_groups = [(None, *part) for part in zip(*rows(), strict=True)]
    learner.W_rand = projection()
    learner.P = torch.zeros(RANDOM_FEATURES, CLASSES)
    learner.G = torch.zeros(RANDOM_FEATURES, RANDOM_FEATURES)
    learner._network = _Network()
    train = learner.replace_fc1 if dummies is None else learner.replace_fc_ours3
    train(None, learner._network, learner.args, None)
    return {"lambda": lam, "dummies": dummies, "weights": learner._network.fc.weight.T.tolist()}


def ranpac(folder: Path) -> dict[str, Any]:
    """The chosen ridge and the weights. Rows come in the order in which our method searches."""
    one_hot = torch.nn.functional.one_hot
    code = functions(
        folder / "RanPAC.py", {"Learner"}, target2onehot=lambda y, n: one_hot(y, n).float()
    )
    learner = code.Learner()
    learner.args = {"use_RP": True, "M": RANDOM_FEATURES}
    learner.total_classnum = CLASSES
    learner.W_rand = projection()
    learner.Q = torch.zeros(RANDOM_FEATURES, CLASSES)
    learner.G = torch.zeros(RANDOM_FEATURES, RANDOM_FEATURES)
    learner._network = _Network()
    chosen = []
    search = learner.optimise_ridge_parameter
    learner.optimise_ridge_parameter = lambda *given: chosen.append(search(*given)) or chosen[-1]
    X, y = (torch.cat(parts) for parts in rows())
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(X)))
    learner.replace_fc([(None, X[order], y[order])])
    return {"lambda": float(chosen[0]), "weights": learner._network.fc.weight.T.tolist()}


def loranpac(folder: Path) -> dict[str, Any]:
    """Scores of all rows. Every client is one task, so that its SVD grows twice."""
    code = functions(folder / "utils/inc_net.py", {"TSVDNet"}, BaseNet=_Backbone)
    settings = {
        **{"use_RE": True, "use_relu": True, "E": RANDOM_FEATURES, "nb_classes": CLASSES},
        **{"ridge": 0, "rank": 10_000, "truncate_percent": 25, "coslinear": False},
        "save_spectrum": False,
    }
    network = code.TSVDNet(settings, True)
    network.RE = projection()
    network.set_phase(2)
    network.update_num_seen_classes(CLASSES)
    for X, y in zip(*rows(), strict=True):
        network.learn_batch(X, y)
        network.update_svd()
    return {"scores": network(torch.cat(rows()[0]))["logits"].tolist()}


class _Backbone(torch.nn.Module):
    """The base class of a network whose features are its input."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.backbone, self.feature_dim, self._device = torch.nn.Identity(), WIDTH, "cpu"


class _Network(torch.nn.Module):
    """A network whose features are its input, and a head to be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.convnet = self.extract_vector = torch.nn.Identity()
        self.fc = torch.nn.Linear(RANDOM_FEATURES, CLASSES, bias=False).requires_grad_(False)


def projection() -> torch.Tensor:
    """The random projection that our methods draw for seed 0."""
    P = np.random.RandomState(0).standard_normal((WIDTH, RANDOM_FEATURES))
    return torch.tensor(P, dtype=torch.float32)


def main() -> None:
    """Write the rows and all outputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in COMMITS:
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="DIR")
    parser.add_argument("out", type=Path)
    folders = parser.parse_args()
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    moved = torch.Tensor.to
    torch.Tensor.to = lambda self, *_, **options: (  # type: ignore[method-assign]
        self if options.get("device") == "cuda" else moved(self, *_, **options)
    )
    setattr(np, "mat", np.asmatrix)  # noqa: B010, removed from NumPy 2
    X, y = rows()
    fixture = {
        "commits": COMMITS,
        "rows": [x.tolist() for x in X],
        "labels": [c.tolist() for c in y],
        "afl": [afl(folders.afl, gamma) for gamma in (1.0, 0.1)],
        "fed3r": [fed3r(folders.fed3r, lam) for lam in (0.01, 1.0)],
        "fedcof": [fedcof(folders.fedcof, gamma) for gamma in (1.0, 0.1)],
        "stsa": [stsa(folders.stsa, lam, k) for lam in (10.0, 1e6) for k in (None, 1)],
        "ranpac": [ranpac(folders.ranpac)],
        "loranpac": [loranpac(folders.loranpac)],
    }
    lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in fixture.items())
    folders.out.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
