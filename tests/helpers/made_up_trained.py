"""Made-up results of trained methods: heads, networks from scratch, and runs for the speed-up."""

from helpers.made_up import made_up

SCHEDULE = {
    "epochs": 2,
    "lr": 0.05,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "batch": 128,
    "averaging": "unweighted",
    "participation": 1.0,
    "weights": "",
    "image_size": None,
}
OWN = {
    "finetune": ("Finetune", {}),
    "fedlwf": ("FedLwF", {"temperature": 2.0, "strength": 3.0}),
    "fedewc": ("FedEWC", {"strength": 100.0, "flavour": "corrected"}),
    "fedicarl": ("FediCaRL", {"exemplars": 2000}),
    "target": ("TARGET", {"synthetic": 8000, "generator_rounds": 10}),
}
RESNET18_BYTES, HEAD_BYTES = 44_900_000, 512_400
"""Of one upload: the parameters in float32."""


def heads(n_rounds=50, **more):
    """The five methods with a linear head on the same features as FedRAN."""
    return [
        _trained(key, f"{name} (head)", own, i, "head", n_rounds, HEAD_BYTES, **more)
        for i, (key, (name, own)) in enumerate(OWN.items())
    ]


def scratch(n_rounds=100, network="resnet18", **more):
    """The five with a network on the images, and FedEWC as published."""
    found = [
        _trained(key, f"{name} (from scratch)", own, i, network, n_rounds, RESNET18_BYTES, **more)
        for i, (key, (name, own)) in enumerate(OWN.items())
    ]
    own = {"strength": 1.0, "flavour": "as_published"}
    label = "FedEWC (from scratch, as published)"
    return [*found, _trained("fedewc", label, own, 5, network, n_rounds, RESNET18_BYTES, **more)]


def _trained(key, label, own, i, network, n_rounds, size, **more):
    frozen = network == "head"
    last = (0.30, 0.45, 0.33, 0.60, 0.40, 0.20)[i]
    steps = [0.0, 0.55, 0.8, 1.0] if not frozen else []
    closing = key in {"fedicarl", "target"}
    fields = {
        "family": "trained",
        "level": last + (0.25 if frozen else 0.05),
        "upload": size * n_rounds,
        "rounds": n_rounds + closing,
        "params": {**SCHEDULE, "network": network, "n_rounds": n_rounds, **own},
        "drift": [round(s * (1.6 - last), 3) for s in steps],
        "reference_acc": [round(0.9 - (0.9 - last) * s, 3) for s in (0.0, 0.55, 0.8, 1.0)],
        "sends": "the model's parameters",
        "client": (0.02 if frozen else 3.0) * n_rounds,
        "forward": 2.0 if frozen else None,
        "study": "training",
    }
    return made_up(key, label, **{**fields, **more})


def fedran(**more):
    """FedRAN with its accuracy on the reference rows."""
    return made_up("fedran", "FedRAN", reference_acc=[0.88, 0.86, 0.85, 0.84], **more)


def speedup(n_rounds=2, **more):
    """FedRAN, heads and networks, one after the other on one machine."""
    place = {"study": "speedup", "machine": "Linux x86_64, 2 cores", **more}
    return [fedran(**place), *heads(100, **place), *scratch(n_rounds, **place)]


def all_trained(seeds=(1, 2), betas=(0.1, 0.5)):
    """Everything, over seeds and betas."""
    places = [{"seed": s, "beta": b} for b in betas for s in seeds]
    found = [r for p in places for r in [fedran(**p), *heads(**p), *scratch(**p)]]
    return found + speedup(beta=betas[0])
