"""TARGET: the server synthesises images of old classes from the model; clients distil on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedran.methods.protocol import Spec
from fedran.methods.trained.training import workbench
from fedran.methods.trained.training.lazy_torch import Tensor, torch
from fedran.methods.trained.training.local import stable_seed
from fedran.methods.trained.training.losses import distillation
from fedran.methods.trained.training.state import Memory, State, Work
from fedran.methods.trained.training.tensors import augmented, inputs
from fedran.methods.trained.training.trainer import Trained

PUBLISHED_ROUNDS, CORRECTED_ROUNDS = 10, 40
PUBLISHED_IMAGES, PUBLISHED_BATCHES = 8000, 16
"""The published code splits its nominal 8,000 images into as many batches as a mean client of
CIFAR-100 in 5 tasks has; only 2,560 exist, so an epoch ends after 6 of 16."""


@dataclass(frozen=True)
class TARGET(Trained):
    """New-class cross-entropy plus distillation on synthetic images of the old classes.

    ``corrected``: synthesis goes on past the warm-up, so that the student is distilled and the
    adversarial term acts; every real batch comes with a synthetic one of its size.
    ``as_published``: 10 synthesis rounds end before the warm-up of 20; an epoch ends with the
    synthetic batches, which are larger and fewer than the real ones.
    """

    network: Literal["small", "resnet18", "resnet18-7x7"] = "resnet18"
    strength: float = 25.0
    temperature: float = 2.0
    synthesis_rounds: int | None = None
    warmup: int = 20
    generator_steps: int = 10
    distillation_steps: int = 400
    synthetic_batch: int = 256
    flavour: Literal["corrected", "as_published"] = "corrected"

    title = "TARGET"
    verified = (
        "partly: losses, generator, distillation and replay tested; the schedule is that of the "
        "published code, its accuracy was not checked"
    )
    closes = True
    keeps_teacher = True

    def init(self, spec: Spec, seed: int) -> State:
        """First weights; refused where the generator cannot make such images."""
        if spec.image_size is None or spec.image_size % 4:
            raise ValueError(
                "TARGET makes square images whose side is a multiple of 4, these are "
                f"{'not square' if spec.image_size is None else spec.image_size}: set image_size"
            )
        return super().init(spec, seed)

    @property
    def planned_rounds(self) -> int:
        """Synthesis rounds of a task."""
        if self.synthesis_rounds is not None:
            return self.synthesis_rounds
        return CORRECTED_ROUNDS if self.flavour == "corrected" else PUBLISHED_ROUNDS

    def finish_task(self, state: State) -> State:
        """Synthetic images from the final model, except after the last task."""
        from fedran.methods.trained.training.synthesis import Plan, synthesise

        if state.task + 1 >= len(state.spec.task_classes):
            state.extra.pop("synthetic", None)
            return state
        plan = Plan(
            self.planned_rounds,
            self.warmup,
            self.generator_steps,
            self.distillation_steps,
            self.synthetic_batch,
        )
        network = workbench.teacher(self.network, state.weights, self.where)
        student = workbench.student(self.network, state.weights, self.where)
        seed = stable_seed("synthesis", state.seed, state.task)
        assert state.spec.image_size is not None
        made = synthesise(network, student, state.spec.image_size, plan, seed, self.where)
        state.extra["synthetic"] = made.images
        return state

    def handed_out(self, state: State, round_: int) -> Memory:
        """The synthetic images, once a task: with the final model."""
        closing = round_ >= self.n_rounds and "synthetic" in state.extra
        return {"synthetic": state.extra["synthetic"]} if closing else {}

    def close(self, work: Work) -> Memory:
        """Keep the synthetic images; nothing to send."""
        work.memory.update(work.extra)
        return {}

    def synthetic_size(self) -> int:
        """Synthetic images beside a batch of real ones."""
        if self.flavour == "corrected":
            return self.batch
        return PUBLISHED_IMAGES // PUBLISHED_BATCHES

    def most_batches(self, work: Work) -> int | None:
        """As published, an epoch ends with the synthetic batches."""
        if self.flavour == "corrected" or work.teacher is None:
            return None
        return -(-len(work.memory["synthetic"]) // self.synthetic_size())

    def loss(self, work: Work, X: Tensor, codes: Tensor) -> Tensor:
        """CE over new-class logits of real rows + strength x KD on synthetic ones."""
        value = self.classification(work, work.student(inputs(X)), codes)
        if work.teacher is None:
            return value
        images = work.memory["synthetic"]
        drawn = torch.randint(len(images), (self.synthetic_size(),), generator=work.random)
        chosen = images[drawn.to(images.device)]
        x = inputs(augmented(chosen, work.random) if self.augment else chosen)
        with torch.no_grad():
            soft = work.teacher(x)
        return value + self.strength * distillation(work.student(x), soft, self.temperature)
