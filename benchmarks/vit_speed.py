"""Training speed of the methods on a frozen ViT, in images per second.

    FEDRAN_DATA=... python benchmarks/vit_speed.py --device cuda --precision bfloat16

First the seconds of a forward pass of the frozen network, per image. Then one
client trains on random images in the second task of a stream, first to warm up and then for the
measurement. One line of JSON per method, with figures for steps that are launched one by one
and for recorded ones: images per second of training, the seconds that a run of
CIFAR-100 with 5 rounds of 5 epochs per task would train, images per second of inference, and the
largest memory of the device. ``off_by`` is the relative distance between the two results.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import torch

from fedran_bench.methods.prompted.base import VIT, PromptedMethod
from fedran_bench.methods.prompted.frozen_vit import frozen_vit
from fedran_bench.methods.protocol import ClientData, Spec
from fedran_bench.methods.registry import METHODS, make_method
from fedran_bench.methods.trained.messages import unpack_tensors
from fedran_bench.methods.trained.rows import as_tensor

VIT_METHODS = tuple(key for key in METHODS if issubclass(METHODS[key], PromptedMethod))
IMAGES_PER_RUN = 50_000 * 25
CLASSES = 10


def forward_seconds(args: argparse.Namespace) -> float:
    """Seconds per image of the frozen network, from pixels to features: the best of five passes."""
    vit = frozen_vit(VIT, args.device, args.precision)
    X = as_tensor(random_images(args.rows), args.device)
    seconds = []
    for _ in range(6):  # the first one warms up
        start = time.perf_counter()
        vit.embed(X).query.cpu()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:]) / len(X)


def random_images(n: int) -> np.ndarray:
    """n images of 32 x 32 pixels."""
    return np.random.default_rng(0).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)


def measure(key: str, args: argparse.Namespace) -> dict:
    """Speed of one method, launched and recorded, and how far the two results are apart."""
    on_gpu = args.device.startswith("cuda")
    settings = {"precision": args.precision, "epochs": args.epochs, "n_rounds": 1}
    uploads, speeds = {}, {}
    for execution in ("eager", "recorded") if on_gpu else ("eager",):
        method = make_method(key, {**settings, "execution": execution}, args.device)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        uploads[execution], speeds[execution] = second_task(method, args)
    plain, *others = (unpack_tensors("local-model", u, "cpu").tensors for u in uploads.values())
    return {
        "method": method.name,
        "device": torch.cuda.get_device_name() if on_gpu else args.device,
        "precision": args.precision,
        "batch": method.params()["batch"],
        "upload_bytes": len(uploads["eager"]),
        "off_by": [
            float(max((plain[n] - t).norm() / plain[n].norm() for n, t in other.items()))
            for other in others
        ],
        **speeds,
    }


def second_task(method: PromptedMethod, args: argparse.Namespace) -> tuple[bytes, dict]:
    """The upload of a client in the second task, and its speed in a repeated round."""
    tasks = (tuple(range(CLASSES)), tuple(range(CLASSES, 2 * CLASSES)))
    state = method.init(Spec(3, tasks, ("a",), image_size=32), 0)
    X = random_images(args.rows)
    seconds = []
    for task in range(2):
        data = ClientData("a", str(task), X, CLASSES * task + np.arange(len(X)) % CLASSES)
        for _ in range(2):
            message = method.broadcast(state, task, 0)
            start = time.perf_counter()
            cstate, upload = method.client(None, message, data, 0)
            seconds.append(time.perf_counter() - start)
        state = method.aggregate(state, task, 0, {"a": upload})
        for round_ in range(1, method.rounds(task)):
            message = method.broadcast(state, task, round_)
            cstate, closing = method.client(cstate, message, data, 0)
            state = method.aggregate(state, task, round_, {"a": closing})
    if args.profile:
        print(profile(lambda: method.client(None, method.broadcast(state, 1, 0), data, 0)))
    method.predict(state, X[:200])
    start = time.perf_counter()
    method.predict(state, X)
    predicted = time.perf_counter() - start
    trained = args.epochs * len(X) / seconds[-1]
    return upload, {
        "images_per_second": round(trained, 1),
        "seconds_per_run": round(IMAGES_PER_RUN / trained, 1),
        "inference_per_second": round(len(X) / predicted, 1),
        "first_round_seconds": [round(s, 2) for s in seconds[::2]],
        "device_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2)
        if args.device.startswith("cuda")
        else None,
    }


def profile(f: Callable[[], object]) -> str:
    """The kernels that take most of the time of f."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        f()
    return found.key_averages().table(
        "self_device_time_total", row_limit=12, max_name_column_width=60
    )


def main() -> None:
    """Measure the methods one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--methods", default=",".join(VIT_METHODS), help="empty: none")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="also list the slowest kernels")
    args = parser.parse_args()
    print(json.dumps({"seconds_per_row": float(f"{forward_seconds(args):.3g}")}), flush=True)
    for key in filter(None, args.methods.split(",")):
        print(json.dumps(measure(key, args)), flush=True)


if __name__ == "__main__":
    main()
