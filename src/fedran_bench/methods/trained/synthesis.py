"""Synthetic images from a model alone, as TARGET's server makes them (data-free distillation).

Every synthesis round draws noise and labels, lets a copy of the generator fit them for a few
steps, keeps the best batch of images, and moves the generator along the copy's gradients
(first-order meta-learning). After the warm-up a student is distilled on the images made so far,
and the generator prefers images on which student and teacher differ.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedran_bench.methods.trained.local_training import autocast
from fedran_bench.methods.trained.networks import Network, initialise
from fedran_bench.methods.trained.recorded import Replays
from fedran_bench.methods.trained.rows import augment, normalise, to_device_async

if TYPE_CHECKING:
    from fedran_bench.methods.trained.target import TARGET

NOISE = 256
"""Dimensions of the generator's input."""
STATISTICS, LABELS, ADVERSARIAL = 10.0, 0.5, 1.0
"""Weights of the three terms of the generator's loss."""
GENERATOR_LR, NOISE_LR, BETAS = 2e-3, 1e-2, (0.5, 0.999)
MOMENTUM = 0.9
"""Share of earlier rounds in the batch statistics that are compared with the teacher's."""
STUDENT_TEMPERATURE, STUDENT_BATCH = 20.0, 256
STUDENT_LR, MIN_STUDENT_LR, COSINE_ROUNDS = 0.2, 2e-4, 200


class Generator(nn.Module):
    """Noise (n, 256) -> images (n, 3, s, s) in 0 .. 1, by doubling the size s / 4 twice."""

    def __init__(self, size: int, noise: int = NOISE, width: int = 128) -> None:
        super().__init__()
        self.start = size // 4
        self.width = width
        self.first = nn.Linear(noise, width * self.start**2)
        self.layers = nn.Sequential(
            nn.BatchNorm2d(width),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(width, width // 2, 3, padding=1, bias=False),
            nn.BatchNorm2d(width // 2),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width // 2, 3, 3, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, z: Tensor) -> Tensor:
        """Images."""
        x = self.first(z).view(len(z), self.width, self.start, self.start)
        return self.layers(x)


class Synthesis:
    """Images of all classes of a frozen teacher, as ``plan`` says. The student is overwritten.

    Holds the generator, the student and their optimisers.
    """

    def __init__(
        self, teacher: Network, student: Network, size: int, plan: TARGET, seed: int
    ) -> None:
        self.teacher, self.student = teacher, student
        self.size, self.plan, self.device = size, plan, plan.torch_device
        device, recorded = self.device, plan.execution != "eager"
        self.random = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.generator = Generator(size).to(device)
        self.generator_optimiser = torch.optim.Adam(
            self.generator.parameters(), GENERATOR_LR * plan.generator_steps, betas=BETAS
        )
        initialise(student, seed)
        self.student_optimiser = torch.optim.SGD(
            student.parameters(),
            # A replayed step reads a changed rate only from a tensor.
            torch.tensor(STUDENT_LR, device=device) if recorded else STUDENT_LR,
            momentum=0.9,
            weight_decay=1e-4,
            fused=recorded or None,
        )
        self.student_loss = torch.tensor(math.nan, device=device)
        self.student_step = self._replayed() if recorded else self._student_step
        self.statistics = BatchNormDistance(teacher)

    def run(self) -> Tensor:
        """All rounds: images (n, 3, s, s) in uint8."""
        made = torch.zeros((0, 3, self.size, self.size), dtype=torch.uint8, device=self.device)
        with self.statistics:
            for number in range(self.plan.synthesis_rounds):
                distils = number >= self.plan.warmup
                images, _ = self.make_images(self.student.eval() if distils else None)
                made = torch.cat([made, images])
                self.statistics.next_round()
                if distils:
                    self._set_student_lr(student_lr(number - self.plan.warmup))
                    self.statistics.listening = False
                    self.distil(made)
                    self.statistics.listening = True
        return made

    def make_images(self, student: Network | None) -> tuple[Tensor, list[float]]:
        """The best batch of a copy of the generator, and its losses; a step of the generator."""
        copied = copy.deepcopy(self.generator).train()
        n, random = self.plan.synthetic_batch, self.random
        z = torch.randn((n, NOISE), generator=random).to(self.device).requires_grad_()
        labels = torch.randint(len(self.teacher.head.bias), (n,), generator=random)
        labels = labels.to(self.device)
        inner = torch.optim.Adam(
            [{"params": copied.parameters()}, {"params": [z], "lr": NOISE_LR}],
            GENERATOR_LR,
            betas=BETAS,
        )
        self.generator_optimiser.zero_grad(set_to_none=False)
        least, best, losses = math.inf, None, []
        for _ in range(self.plan.generator_steps):
            images = copied(z)
            loss = self.generator_loss(images, labels, student)
            losses.append(float(loss.detach()))
            if losses[-1] < least or best is None:
                least, best = losses[-1], images.detach()
            inner.zero_grad(set_to_none=True)
            loss.backward()
            for ours, theirs in zip(self.generator.parameters(), copied.parameters(), strict=True):
                grad = torch.zeros_like(ours) if theirs.grad is None else theirs.grad
                ours.grad = grad.clone() if ours.grad is None else ours.grad + grad
            inner.step()
        self.generator_optimiser.step()
        assert best is not None
        return (best * 255.0).round().to(torch.uint8), losses

    def generator_loss(self, images: Tensor, labels: Tensor, student: Network | None) -> Tensor:
        """10 x BatchNorm statistics + 0.5 x cross-entropy + adversarial term, augmented images."""
        x = normalise(augment(images, self.random))
        with autocast(self.device, self.plan.precision):
            logits = self.teacher(x)
            loss = LABELS * nn.functional.cross_entropy(logits, labels)
            if student is not None:
                loss = loss + ADVERSARIAL * adversarial_loss(student(x), logits)
        return loss + STATISTICS * self.statistics.take()

    def distil(self, images: Tensor) -> float:
        """Train the student on the teacher's answers to these images; the last loss."""
        self.student.train()
        for _ in range(self.plan.distillation_steps):
            rows = torch.randint(len(images), (STUDENT_BATCH,), generator=self.random)
            moved = augment(images[to_device_async(rows, self.device)], self.random)
            self.student_step({"images": moved})
        return float(self.student_loss)

    def _student_step(self, batch: Mapping[str, Tensor]) -> None:
        x = normalise(batch["images"].float() / 255.0)
        with autocast(self.device, self.plan.precision):
            with torch.no_grad():
                soft = self.teacher(x)
            loss = divergence(self.student(x), soft, STUDENT_TEMPERATURE).mean()
        self.student_optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.student_optimiser.step()
        self.student_loss.copy_(loss.detach())

    def _replayed(self) -> Replays:
        """``_student_step``, recorded once for all rounds. The momentum starts in fixed tensors."""
        momentum = []
        for p in self.student.parameters():
            momentum.append(torch.zeros_like(p))
            self.student_optimiser.state[p]["momentum_buffer"] = momentum[-1]
        return Replays(
            self._student_step,
            lambda: [*self.student.state_dict().values(), *momentum],
            self.device,
        )

    def _set_student_lr(self, lr: float) -> None:
        (group,) = self.student_optimiser.param_groups
        if torch.is_tensor(group["lr"]):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def student_lr(rounds: int) -> float:
    """The student's learning rate after this many rounds of distillation: a cosine."""
    share = 0.5 * (1 + math.cos(math.pi * min(rounds, COSINE_ROUNDS) / COSINE_ROUNDS))
    return MIN_STUDENT_LR + (STUDENT_LR - MIN_STUDENT_LR) * share


def divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student) of every row at a temperature, times T^2."""
    log_student = torch.log_softmax(student.float() / temperature, 1)
    log_teacher = torch.log_softmax(teacher.float() / temperature, 1)
    rows = (log_teacher.exp() * (log_teacher - log_student)).sum(1)
    return rows * temperature**2


def adversarial_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Minus the mean divergence of the rows for which both predict the same class."""
    agree = student.argmax(1) == teacher.argmax(1)
    return -(divergence(student, teacher) * agree).mean()


class BatchNormDistance:
    """Distance of a batch from the running statistics of every BatchNorm layer of a network."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.found: list[Tensor] = []
        self.listening = True
        """False while the teacher answers the student."""
        self.latest: dict[int, tuple[Tensor, Tensor]] = {}
        self.smoothed: dict[int, tuple[Tensor, Tensor]] = {}
        """Smoothed statistics of earlier rounds; the current batch counts for one tenth."""

    def __enter__(self) -> BatchNormDistance:
        layers = [m for m in self.network.modules() if isinstance(m, nn.BatchNorm2d)]
        self.handles = [layer.register_forward_pre_hook(self._measure) for layer in layers]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def take(self) -> Tensor:
        """The sum over the layers since the last call."""
        total, self.found = torch.stack(self.found).sum(), []
        return total

    def next_round(self) -> None:
        """Count the latest statistics as those of earlier rounds."""
        self.smoothed = dict(self.latest)

    def _measure(self, layer: nn.BatchNorm2d, given: tuple[Tensor]) -> None:
        if not self.listening:
            return
        x = given[0].float()
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        before = self.smoothed.get(id(layer))
        if before is not None:
            mean = MOMENTUM * before[0] + (1 - MOMENTUM) * mean
            variance = MOMENTUM * before[1] + (1 - MOMENTUM) * variance
        self.latest[id(layer)] = (mean.detach(), variance.detach())
        assert layer.running_mean is not None
        assert layer.running_var is not None
        norm = torch.linalg.vector_norm
        self.found.append(norm(mean - layer.running_mean) + norm(variance - layer.running_var))
