"""Made-up results on a Vision Transformer: prompt and LoRA methods, analytic ones beside them."""

from helpers.made_up import made_up

PLACE = {"dataset": "cifar100-vit_ti16", "tasks": 10}
GPU = "Linux x86_64, 16 cores, NVIDIA H200"
PROMPTS = {
    "fed-dualprompt": ("Fed-DualPrompt", 0.70, 400_000),
    "fed-codaprompt": ("Fed-CODA-Prompt", 0.68, 3_000_000),
    "fed-cprompt": ("Fed-CPrompt", 0.66, 3_000_000),
    "pilora": ("PILoRA", 0.74, 100_000),
    "lorm": ("LoRM", 0.76, 900_000),
}
TRAINING = {
    "weights": "weights/vit_tiny_patch16_224.safetensors",
    "n_rounds": 5,
    "epochs": 5,
    "lr": 0.001,
    "batch": 128,
    "averaging": "weighted",
    "participation": 1.0,
    "precision": "bfloat16",
}


def prompted(keys=tuple(PROMPTS), **more):
    """The prompt and LoRA methods."""
    found = []
    for key, (label, level, size) in PROMPTS.items():
        if key in keys:
            fields = {
                "family": "trained",
                "level": level,
                "upload": 5 * size,
                "rounds": 5,
                "params": TRAINING,
                "client": 20.0,
                "forward": None,
                "machine": GPU,
                "study": "training",
                "config": "configs/paper/vit_prompts.toml",
                "drift": [0.0, *(0.1 * t for t in range(1, 9))],
            }
            found.append(made_up(key, label, **{**PLACE, **fields, **more}))
    return found


def analytic(**more):
    """FedRAN's two messages, the paper's algorithm, STSA-E, and FedRAN on a fine-tuned network."""
    place = {**PLACE, "machine": GPU, **more}
    tuned = {"rank": 128, "task0": {"n_rounds": 10, "epochs": 2}}
    return [
        made_up("fedran", "FedRAN", level=0.86, params={"rank": 128}, **place),
        made_up("fedran", "FedRAN (fine-tuned in task 0)", level=0.88, params=tuned, **place),
        made_up("fedran-mixture", "FedRAN-mixture", level=0.85, upload=50_000, **place),
        made_up("fedran-paper", "FedRAN-paper", level=0.84, params={"rank": 2048}, **place),
        made_up("stsa-e", "STSA-E", level=0.82, **place),
    ]


def vit(seeds=(1993,), betas=(0.5,), **more):
    """All of them."""
    places = [{"seed": s, "beta": b, **more} for b in betas for s in seeds]
    return [r for place in places for r in [*analytic(**place), *prompted(**place)]]
