"""TARGET: the server synthesises images of old classes from the model; clients distil on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedran.settings import at_least
from fedran_bench.methods.protocol import Spec
from fedran_bench.methods.trained.fedavg import ServerState
from fedran_bench.methods.trained.lazy_torch import Tensor, torch
from fedran_bench.methods.trained.local_training import (
    ClientRound,
    Memory,
    distillation,
    fast_convolutions,
    stable_seed,
)
from fedran_bench.methods.trained.method import FedLwF
from fedran_bench.methods.trained.rows import Replay, network_input
from fedran_bench.methods.trained.weights import student_network, teacher_network


@dataclass(frozen=True)
class TARGET(FedLwF):
    """New-class cross-entropy plus distillation on synthetic images of the old classes.

    Synthesis continues after the warm-up, so that the student is distilled and the adversarial
    term acts; every real batch comes with a synthetic one of the same size. In the published code
    10 synthesis rounds end before the warm-up of 20, and an epoch ends with the synthetic batches,
    which are larger and fewer than the real ones.
    """

    network: Literal["small", "resnet18", "resnet18-7x7"] = "resnet18"
    """The network that is trained on images."""
    strength: Annotated[float, at_least(0)] = 25.0
    """Weight of the distillation term."""
    synthesis_rounds: Annotated[int, at_least(1)] = 40
    """Synthesis rounds per task."""
    warmup: Annotated[int, at_least(0)] = 20
    """Synthesis rounds before the server's student is distilled."""
    generator_steps: Annotated[int, at_least(1)] = 10
    """Steps of the generator per synthesis round."""
    distillation_steps: Annotated[int, at_least(0)] = 400
    """Steps of the server's student per synthesis round."""
    synthetic_batch: Annotated[int, at_least(2)] = 256
    """Synthetic images per synthesis round."""

    title = "TARGET"
    verified = "partly: losses, generator, distillation and replay tested; accuracy was not checked"

    def init(self, spec: Spec, seed: int) -> ServerState:
        """The initial weights. Images of a size that the generator cannot make are an error."""
        if spec.image_size is None or spec.image_size % 4:
            raise ValueError(
                "TARGET makes square images whose side is a multiple of 4, these are "
                f"{'not square' if spec.image_size is None else spec.image_size}: set image_size"
            )
        return super().init(spec, seed)

    def finish_training(self, state: ServerState) -> ServerState:
        """Make synthetic images from the final model, except after the last task."""
        from fedran_bench.methods.trained.synthesis import Synthesis

        if state.task + 1 >= len(state.spec.task_classes):
            state.extra.pop("synthetic", None)
            return state
        teacher = teacher_network(self.network, state.weights, self.torch_device)
        student = student_network(self.network, state.weights, self.torch_device)
        seed = stable_seed("synthesis", state.seed, state.task)
        assert state.spec.image_size is not None
        size = state.spec.image_size
        with fast_convolutions(self.precision == "bfloat16"):
            state.extra["synthetic"] = Synthesis(teacher, student, size, self, seed).run()
        return state

    def extra_download(self, state: ServerState, round_: int) -> Memory:
        """The synthetic images, once per task: with the final model."""
        closing = round_ >= self.n_rounds and "synthetic" in state.extra
        return {"synthetic": state.extra["synthetic"]} if closing else {}

    def close_task(self, client: ClientRound) -> Memory:
        """Keep the synthetic images; send nothing."""
        client.memory.update(client.extra)
        return {}

    def replay(self, client: ClientRound) -> Replay | None:
        """Synthetic images with every batch, from the second task on."""
        if client.teacher is None:
            return None
        return Replay(client.memory["synthetic"], self.batch)

    def loss(self, client: ClientRound, X: Tensor, codes: Tensor) -> Tensor:
        """Cross-entropy over the new logits of real rows + strength x distillation on synthetic."""
        value = self.classification_loss(client, client.student(network_input(X)), codes)
        if client.teacher is None:
            return value
        x = network_input(client.replayed)
        with torch.no_grad():
            soft = client.teacher(x)
        return value + self.strength * distillation(client.student(x), soft, self.temperature)
