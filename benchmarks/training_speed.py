"""Images per second of the methods that train a ResNet-18, and the minutes of their full runs.

    python benchmarks/training_speed.py --device cuda

Five clients hold 2,000 random images of 32 x 32 pixels each, as many as a task of CIFAR-100 in
five tasks has per client on average. Every method does two rounds of one epoch in its first and in
its second task. The first round warms up, the second one is timed. From its parts the script
computes the minutes of the paper's schedule: 5 tasks, 100 rounds of 2 epochs, batches of 128. Tests
after each task, checkpoints and the loading of the data are not counted.

A ResNet-18 with a 3x3 stem takes 3.33 GFLOP per trained image (``torch.utils.flop_counter``). A
full run of Finetune trains 10 million images, of FediCaRL 18 million, of TARGET 18 million and 8
million more in its synthesis.

Each kind of execution is compared with the first one: "off by" is the largest difference of a
weight after the second task, relative to the largest weight of the same tensor.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedran_bench.methods.protocol import ClientData, Spec
from fedran_bench.methods.registry import make_method
from fedran_bench.methods.trained.local_training import fast_convolutions
from fedran_bench.methods.trained.messages import pack_tensors, unpack_tensors
from fedran_bench.methods.trained.synthesis import Synthesis
from fedran_bench.methods.trained.weights import student_network, teacher_network

METHODS = ("finetune", "fedlwf", "fedewc", "fedicarl", "target")
TASKS, ROUNDS, EPOCHS, CLIENTS, CLASSES = 5, 100, 2, 5, 20


@dataclass(frozen=True)
class Federation:
    """Clients with random images, and the calls of one round, timed."""

    method: Any
    rows: int
    device: str

    def seconds(self, work: Callable[[], Any]) -> tuple[float, Any]:
        """The time of a call until the device has finished, and its result."""
        self.wait()
        start = time.perf_counter()
        result = work()
        self.wait()
        return time.perf_counter() - start, result

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def data(self, task: int) -> list[ClientData]:
        """The rows of all clients in a task."""
        rng = np.random.default_rng(task)
        return [
            ClientData(
                f"client-{k}",
                str(task),
                rng.integers(0, 256, (self.rows, 32, 32, 3), dtype=np.uint8),
                rng.integers(task * CLASSES, (task + 1) * CLASSES, self.rows),
            )
            for k in range(CLIENTS)
        ]

    def round(self, state: Any, memory: dict[str, Any], data: list[ClientData], at: int) -> Any:
        """One round; returns the server's next state."""
        task = int(data[0].task)
        message = self.method.broadcast(state, task, at)
        sent = {}
        for part in data:
            known = memory.get(part.client)
            memory[part.client], sent[part.client] = self.method.client(known, message, part, 0)
        return self.method.aggregate(state, task, at, sent)


def measure(key: str, execution: str, options: argparse.Namespace) -> tuple[str, Any]:
    """One line of the table, and the weights at the end."""
    settings = {
        "network": options.network,
        "precision": options.precision,
        "execution": execution,
        "n_rounds": 2,
        "epochs": 1,
    }
    if key == "target":
        settings |= {"synthesis_rounds": 1, "warmup": 1, "n_rounds": 3}  # the last one synthesises
    method = make_method(key, settings, options.device)
    full = make_method(key, {"network": options.network}, options.device)
    job = Federation(method, options.rows, options.device)
    classes = tuple(tuple(range(t * CLASSES, (t + 1) * CLASSES)) for t in range(TASKS))
    clients = tuple(f"client-{k}" for k in range(CLIENTS))
    state = method.init(Spec(3, classes, clients, None, 32), 0)
    memory: dict[str, Any] = {}
    training, closing, images = [], 0.0, []
    for task in range(2):
        data = job.data(task)
        for at in range(method.rounds(task)):
            spent, state = job.seconds(lambda s=state, d=data, r=at: job.round(s, memory, d, r))
            if at == 1:
                training.append(spent)
            if at == method.n_rounds:
                closing = spent
        held = [len(m["exemplars"]) if "exemplars" in m else 0 for m in memory.values()]
        images.append(CLIENTS * options.rows + (sum(held) if task else 0))
    overhead = message_seconds(job, state)
    made = synthesis_seconds(job, full, state) if key == "target" else 0.0
    epoch = [max(t - overhead, 1e-9) for t in training]
    task_seconds = [ROUNDS * (overhead + EPOCHS * e) + closing for e in epoch]
    minutes = (task_seconds[0] + (TASKS - 1) * (task_seconds[1] + made)) / 60
    speeds = [n / e for n, e in zip(images, epoch, strict=True)]
    line = (
        f"{key:9} {execution:9} {speeds[0]:8.0f} {speeds[1]:8.0f} images/s in task 1 and 2, "
        f"messages {overhead:.2f} s per round, synthesis {made:4.0f} s per task: "
        f"{minutes:5.1f} minutes"
    )
    return line, state.weights


def message_seconds(job: Federation, state: Any) -> float:
    """Encoding and decoding of one round: the download, and an upload of every client."""

    def work() -> None:
        message = job.method.broadcast(state, 1, 0)
        for _ in range(CLIENTS):
            unpack_tensors("global-model", message, job.device)
        upload = pack_tensors("local-model", {"rows": 1}, state.weights)
        for _ in range(CLIENTS - 1):
            pack_tensors("local-model", {"rows": 1}, state.weights)
        job.method.aggregate(state, 1, 0, {f"client-{k}": upload for k in range(CLIENTS)})

    work()
    return job.seconds(work)[0]


def synthesis_seconds(job: Federation, full: Any, state: Any) -> float:
    """TARGET's synthesis after one task, from one round of images and five distillation steps."""
    steps = 5
    plan = replace(job.method, distillation_steps=steps)
    networks = [
        make(job.method.network, state.weights, job.device)
        for make in (teacher_network, student_network)
    ]
    work = Synthesis(*networks, 32, plan, 0)
    with work.statistics, fast_convolutions(job.method.precision == "bfloat16"):
        images, _ = work.make_images(None)
        drawing = job.seconds(lambda: work.make_images(None))[0]
        work.statistics.listening = False
        work.distil(images)
        distilling = job.seconds(lambda: work.distil(images))[0] / steps
    distilled = max(0, full.synthesis_rounds - full.warmup) * full.distillation_steps
    return full.synthesis_rounds * drawing + distilled * distilling


def main() -> None:
    """Print one line per method and execution."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--execution", default="eager,recorded")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--rows", type=int, default=2000, help="images per client")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {options.network}, {options.precision}")
    for key in options.methods.split(","):
        first = None
        for execution in options.execution.split(","):
            try:
                line, weights = measure(key, execution, options)
            except RuntimeError as reason:
                print(f"{key:9} {execution:9} failed: {' '.join(str(reason).split())[:300]}")
                continue
            if first is not None:
                off = [
                    float((weights[n] - t).abs().max() / t.abs().max().clamp(min=1e-12))
                    for n, t in first.items()
                ]
                line += f", off by {max(off):.1e}"
            first = weights if first is None else first
            print(line, flush=True)


if __name__ == "__main__":
    main()
