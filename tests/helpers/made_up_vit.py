"""Made-up results on a Vision Transformer: prompt methods, and analytic ones beside them."""

from helpers.made_up import made_up


def vit(seed=1993, beta=0.5):
    """FedRAN's messages, FedRAN on a fine-tuned network, STSA-E, and two prompt methods."""
    place = {"dataset": "cifar100-vit_ti16", "tasks": 10, "seed": seed, "beta": beta}
    tuned = {"rank": 128, "task0": {"n_rounds": 10}}
    groups = {"group_size": 6, "min_group": 5}
    trained = {**place, "family": "trained", "params": {"weights": "vit"}, "study": "training"}
    return [
        made_up("fedran", "FedRAN", level=0.86, params={"rank": 128}, **place),
        made_up("fedran", "FedRAN (fine-tuned in task 0)", level=0.88, params=tuned, **place),
        made_up(
            "fedran-mixture", "FedRAN-mixture", level=0.85, upload=50_000, params=groups, **place
        ),
        made_up("fedran-paper", "FedRAN-paper", level=0.84, params={"rank": 2048}, **place),
        made_up("stsa-e", "STSA-E", level=0.82, **place),
        made_up("fed-dualprompt", "Fed-DualPrompt", level=0.70, upload=2_000_000, **trained),
        made_up("lorm", "LoRM", level=0.76, upload=4_500_000, **trained),
    ]
