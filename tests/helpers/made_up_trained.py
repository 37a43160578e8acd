"""Made-up results of trained methods: heads on features, and networks from scratch."""

from helpers.made_up import made_up

METHODS = {
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
        for key, (name, level) in METHODS.items()
    ]


def scratch(**more):
    """The five with a network on the images."""
    drift = {"drift": [0.0, 0.5, 0.9, 1.1]}
    return [
        _trained(key, f"{name} (from scratch)", "resnet18", level, 44_900_000, **{**drift, **more})
        for key, (name, level) in METHODS.items()
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
