"""Made-up results: enough of every kind to fill each section of a report."""

import hashlib

import numpy as np

from fedran_bench.results.result import Result, Seconds, TaskRecord

VERSIONS = {"fedran": "0.2.0", "numpy": "2.0.0", "scipy": "1.0.0"}


def made_up(
    key="fedran",
    label=None,
    *,
    level=0.8,
    upload=1_000_000,
    dataset="cifar100-efficientnet_lite0",
    beta=0.1,
    seed=1,
    tasks=5,
    clients=5,
    label_rate=1.0,
    partitioner="dirichlet",
    family="analytic",
    params=None,
    rounds=1,
    drift=(),
    client=0.5,
    server=0.3,
    config="configs/paper/accuracy.toml",
    **more,
):
    rng = np.random.default_rng([seed, len(key), tasks])
    acc = [
        [round(float(level - 0.03 * t + 0.02 * rng.random()), 4) for _ in range(t + 1)]
        for t in range(tasks)
    ]
    n = 2 * tasks
    stream_hash = hashlib.sha256(
        repr([dataset, beta, seed, tasks, clients, label_rate, partitioner]).encode()
    ).hexdigest()
    extras = {k: more.pop(k) for k in ("accepted", "precision") if k in more}
    records = [
        TaskRecord(
            bytes_up=[int(upload * (0.6 + 0.4 * (k == t % clients))) for k in range(clients)],
            bytes_down=[1000] * clients,
            seconds=Seconds([client + 0.1 * k for k in range(clients)], server),
            rounds=rounds,
            formula_bytes=140_787_712 if key == "fedran-paper" else None,
            **extras,
        )
        for t in range(tasks)
    ]
    fields = {
        "key": key,
        "label": label or key,
        "family": family,
        "params": params or {},
        "claims": {},
        "sends": "rank-r factor and class sums",
        "dataset": dataset,
        "stream": {
            "tasks": tasks,
            "clients": clients,
            "partitioner": partitioner,
            "beta": beta,
            "label_rate": label_rate,
        },
        "seeds": {"order": seed, "partition": seed, "projection": 0},
        "hashes": {"stream": stream_hash, "features": "f" * 64},
        "acc": acc,
        "test_rows": [100] * tasks,
        "classes": [f"class {c}" for c in range(n)],
        "tasks": records,
        "bytes_down_final": 5000,
        "machine": "Linux x86_64",
        "date": "2026-11-15",
        "config": config,
        "drift": list(drift),
        "versions": VERSIONS,
    }
    return Result(**{**fields, **more})


FINETUNE = {
    "family": "trained",
    "rounds": 10,
    "drift": [0.0, 0.3, 0.4, 0.5],
}
METHODS = [
    {"key": key, "label": label, "level": level, "upload": upload, **more}
    for key, label, level, upload, more in (
        ("fedran", "FedRAN", 0.80, 1_110_000, {}),
        ("fedran-paper", "FedRAN-paper", 0.785, 67_780_000, {}),
        ("exact", "Exact Gram", 0.81, 134_900_000, {}),
        ("stsa-e", "STSA-E", 0.76, 20_400_000, {}),
        ("ncm", "Nearest mean", 0.70, 103_000, {}),
        ("afl", "AFL", 0.77, 7_300_000, {}),
        ("fed3r", "Fed3R", 0.771, 7_250_000, {}),
        ("fedcof", "FedCOF", 0.74, 205_000, {}),
        ("finetune", "Finetune", 0.35, 450_000_000, FINETUNE),
        ("joint", "Joint training", 0.83, 300_000_000, {"family": "reference"}),
        ("send-features", "Send float32 features", 0.802, 12_800_000, {"family": "reference"}),
        ("send-int8", "Send 8-bit features", 0.801, 3_200_000, {"family": "reference"}),
    )
]


def studies():
    """Label rates and ranks."""
    labels = [
        made_up(key, level=0.6 + rate / 5, label_rate=rate, study="labels")
        for rate in (0.2, 1.0)
        for key in ("fedran", "fedran-margin")
    ]
    ranks = [
        made_up(level=0.6 + r / 5000, upload=4000 * r, params={"rank": r}, beta=0.5, study="rank")
        for r in (64, 256)
    ]
    return labels + ranks


def write(folder, results, name="results.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(r.to_json() + "\n" for r in results))
    return folder


TRAINED = {
    "finetune": ("Finetune", 0.30),
    "fedlwf": ("FedLwF", 0.45),
    "fedewc": ("FedEWC", 0.33),
    "fedicarl": ("FediCaRL", 0.60),
    "target": ("TARGET", 0.40),
}
"""Label and accuracy by key."""


def heads(**more):
    """The five methods with a linear head on the same features as FedRAN."""
    return [
        _trained(key, f"{name} (head)", "head", level + 0.25, 512_400, **more)
        for key, (name, level) in TRAINED.items()
    ]


def scratch(**more):
    """The five with a network on the images."""
    drift = {"drift": [0.0, 0.5, 0.9, 1.1]}
    return [
        _trained(key, f"{name} (from scratch)", "resnet18", level, 44_900_000, **{**drift, **more})
        for key, (name, level) in TRAINED.items()
    ]


def _trained(key, label, network, level, size, **more):
    fields = {
        "family": "trained",
        "level": level,
        "upload": 50 * size,
        "rounds": 50,
        "params": {"network": network, "n_rounds": 50},
        "study": "training",
    }
    return made_up(key, label, **{**fields, **more})


def vit(seed=1993, beta=0.5):
    """FedRAN's messages, FedRAN on a fine-tuned network, STSA-E, and two prompt methods."""
    place = {"dataset": "cifar100-vit_ti16", "tasks": 10, "seed": seed, "beta": beta}
    tuned = {"rank": 128, "task0": {"n_rounds": 10}}
    groups = {"group_size": 6, "min_group": 5}
    trained = {**place, "family": "trained", "params": {"weights": "vit"}, "study": "training"}
    return [
        made_up("fedran", "FedRAN", level=0.86, params={"rank": 128}, **place),
        made_up("fedran", "FedRAN (fine-tuned in task 0)", level=0.88, params=tuned, **place),
        made_up("fedran-points", "Points", level=0.85, upload=50_000, params=groups, **place),
        made_up("fedran-paper", "FedRAN-paper", level=0.84, params={"rank": 2048}, **place),
        made_up("stsa-e", "STSA-E", level=0.82, **place),
        made_up("fed-dualprompt", "Fed-DualPrompt", level=0.70, upload=2_000_000, **trained),
        made_up("lorm", "LoRM", level=0.76, upload=4_500_000, **trained),
    ]
