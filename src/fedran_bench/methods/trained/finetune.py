"""Finetune, and FedLwF: the same with distillation of the last task's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedran.settings import at_least, positive
from fedran_bench.methods.trained.training.lazy_torch import Tensor
from fedran_bench.methods.trained.training.local_training import ClientRound
from fedran_bench.methods.trained.training.method import TrainedMethod
from fedran_bench.methods.trained.training.rows import network_input


@dataclass(frozen=True)
class Finetune(TrainedMethod):
    """Cross-entropy over the logits of the task's own classes."""

    title = "Finetune"
    verified = (
        "partly: loss and averaging against hand-written ones; the schedule is that of the "
        "published code, its accuracy was not checked"
    )

    def loss(self, client: ClientRound, X: Tensor, codes: Tensor) -> Tensor:
        """Cross-entropy over the logits of the new classes."""
        return self.classification_loss(client, client.student(network_input(X)), codes)


@dataclass(frozen=True)
class FedLwF(TrainedMethod):
    """New-class cross-entropy plus distillation of the old logits on the client's new rows."""

    strength: Annotated[float, at_least(0)] = 3.0
    """Weight of the distillation term."""
    temperature: Annotated[float, positive] = 2.0
    """Temperature of the distillation."""

    title = "FedLwF"
    verified = (
        "partly: loss, frozen teacher and averaging tested; the schedule is that of the published "
        "code, its accuracy was not checked"
    )
    has_closing_round = True
    keeps_teacher = True

    def loss(self, client: ClientRound, X: Tensor, codes: Tensor) -> Tensor:
        """Cross-entropy over the new logits + strength x distillation of the old ones."""
        return self.distilled_loss(client, X, codes, self.strength, self.temperature)
