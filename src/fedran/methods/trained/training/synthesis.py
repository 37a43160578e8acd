"""Images from a model alone: a generator is trained until the model believes what it makes.

Every synthesis round draws noise and labels, lets a copy of the generator fit them for a few
steps, keeps the best batch of images, and moves the generator along the copy's gradients (first
order meta-learning). From the warm-up on, a student is distilled on the images so far, and images
are preferred on which student and teacher differ.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedran.methods.trained.training.generator import NOISE, Generator, seeded_generator
from fedran.methods.trained.training.losses import adversarial_loss, divergence, statistics_loss
from fedran.methods.trained.training.networks import Network, initialise
from fedran.methods.trained.training.tensors import augmented, normalised
from fedran.methods.trained.training.workbench import fast

STATISTICS, LABELS, ADVERSARIAL = 10.0, 0.5, 1.0
"""Weights of the three terms."""
GENERATOR_LR, NOISE_LR, BETAS = 2e-3, 1e-2, (0.5, 0.999)
MOMENTUM = 0.9
"""Of the batch statistics that are compared with the teacher's."""
STUDENT_TEMPERATURE, STUDENT_BATCH = 20.0, 256
STUDENT_LR, LEAST_LR, COSINE = 0.2, 2e-4, 200


@dataclass(frozen=True)
class Plan:
    """How much is synthesised."""

    rounds: int
    warmup: int
    steps: int
    distillation_steps: int
    batch: int


@dataclass
class Outcome:
    """Images (n, 3, s, s) in uint8, and what was measured on the way."""

    images: Tensor
    losses: list[list[float]] = field(default_factory=list)
    """Of every round: the generator's loss at each step."""
    distilled: list[float] = field(default_factory=list)
    """The student's loss after each round of distillation."""


def synthesise(
    teacher: Network, student: Network, size: int, plan: Plan, seed: int, device: str
) -> Outcome:
    """Images of all classes of a frozen teacher; the student is overwritten."""
    random = torch.Generator().manual_seed(seed)
    generator = seeded_generator(size, seed).to(device)
    meta = torch.optim.Adam(generator.parameters(), GENERATOR_LR * plan.steps, betas=BETAS)
    initialise(student, seed)
    learner = torch.optim.SGD(student.parameters(), STUDENT_LR, 0.9, weight_decay=1e-4)
    outcome = Outcome(torch.zeros((0, 3, size, size), dtype=torch.uint8, device=device))
    with Statistics(teacher) as statistics:
        for number in range(plan.rounds):
            judge = student.eval() if number >= plan.warmup else None
            best, losses = _one_round(
                generator, meta, teacher, judge, statistics, plan, random, device
            )
            outcome.images = torch.cat([outcome.images, best])
            outcome.losses.append(losses)
            statistics.next_round()
            if number >= plan.warmup:
                for group in learner.param_groups:
                    group["lr"] = student_lr(number - plan.warmup)
                with statistics.paused():
                    outcome.distilled.append(
                        _distil(student, teacher, learner, outcome.images, plan, random, device)
                    )
    return outcome


def student_lr(rounds: int) -> float:
    """The student's learning rate after so many rounds of distillation: a cosine."""
    share = 0.5 * (1 + math.cos(math.pi * min(rounds, COSINE) / COSINE))
    return LEAST_LR + (STUDENT_LR - LEAST_LR) * share


def _one_round(
    generator: Generator,
    meta: Any,
    teacher: Network,
    judge: Network | None,
    statistics: Statistics,
    plan: Plan,
    random: Any,
    device: str,
) -> tuple[Tensor, list[float]]:
    """The best batch of a copy of the generator, which itself takes one step."""
    copied = copy.deepcopy(generator).train()
    z = torch.randn((plan.batch, NOISE), generator=random).to(device).requires_grad_()
    labels = torch.randint(len(teacher.head.bias), (plan.batch,), generator=random).to(device)
    inner = torch.optim.Adam(
        [{"params": copied.parameters()}, {"params": [z], "lr": NOISE_LR}],
        GENERATOR_LR,
        betas=BETAS,
    )
    meta.zero_grad(set_to_none=False)
    least, best, losses = math.inf, None, []
    for _ in range(plan.steps):
        images = copied(z)
        loss = synthesis_loss(images, labels, teacher, judge, statistics, random, device)
        losses.append(float(loss.detach()))
        if losses[-1] < least or best is None:
            least, best = losses[-1], images.detach()
        inner.zero_grad(set_to_none=True)
        loss.backward()
        for ours, theirs in zip(generator.parameters(), copied.parameters(), strict=True):
            grad = torch.zeros_like(ours) if theirs.grad is None else theirs.grad
            ours.grad = grad.clone() if ours.grad is None else ours.grad + grad
        inner.step()
    meta.step()
    assert best is not None
    return (best * 255.0).round().to(torch.uint8), losses


def synthesis_loss(
    images: Tensor,
    labels: Tensor,
    teacher: Network,
    judge: Network | None,
    statistics: Statistics,
    random: Any,
    device: str,
) -> Tensor:
    """10 x BatchNorm statistics + 0.5 x cross-entropy + adversarial term, on augmented images."""
    x = normalised(augmented(images, random))
    with fast(teacher, device):
        logits = teacher(x)
        loss = LABELS * nn.functional.cross_entropy(logits, labels)
        if judge is not None:
            loss = loss + ADVERSARIAL * adversarial_loss(judge(x), logits)
    return loss + STATISTICS * statistics.take()


def _distil(
    student: Network,
    teacher: Network,
    learner: Any,
    images: Tensor,
    plan: Plan,
    random: Any,
    device: str,
) -> float:
    """Some steps towards the teacher's answers on the images so far; the last loss."""
    student.train()
    last = math.nan
    for step in range(plan.distillation_steps):
        rows = torch.randint(len(images), (STUDENT_BATCH,), generator=random).to(device)
        x = normalised(augmented(images[rows], random).float() / 255.0)
        with fast(teacher, device):
            with torch.no_grad():
                soft = teacher(x)
            loss = divergence(student(x), soft, STUDENT_TEMPERATURE).mean()
        learner.zero_grad(set_to_none=True)
        loss.backward()
        learner.step()
        if step + 1 == plan.distillation_steps:
            last = float(loss.detach())
    return last


class Statistics:
    """Distance of a batch from the running statistics of every BatchNorm layer it passes."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.found: list[Tensor] = []
        self.listening = True
        self.latest: dict[int, tuple[Tensor, Tensor]] = {}
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        """Of earlier rounds, smoothed: what is compared holds a tenth of the batch at hand."""

    def __enter__(self) -> Statistics:
        layers = [m for m in self.network.modules() if isinstance(m, nn.BatchNorm2d)]
        self.handles = [layer.register_forward_pre_hook(self._look) for layer in layers]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def take(self) -> Tensor:
        """The sum over the layers since the last call."""
        total, self.found = torch.stack(self.found).sum(), []
        return total

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The student asks the teacher too, and that is no synthesis."""
        self.listening = False
        yield
        self.listening = True

    def next_round(self) -> None:
        """What was seen last counts as before."""
        self.before = dict(self.latest)

    def _look(self, layer: nn.BatchNorm2d, given: tuple[Tensor]) -> None:
        if not self.listening:
            return
        x = given[0].float()
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        before = self.before.get(id(layer))
        if before is not None:
            mean = MOMENTUM * before[0] + (1 - MOMENTUM) * mean
            variance = MOMENTUM * before[1] + (1 - MOMENTUM) * variance
        self.latest[id(layer)] = (mean.detach(), variance.detach())
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self.found.append(statistics_loss(mean, variance, layer.running_mean, layer.running_var))
