"""Finetune: FedAvg on the classes of the task alone, with nothing against forgetting."""

from __future__ import annotations

from dataclasses import dataclass

from fedran.methods.trained.training.lazy_torch import Tensor
from fedran.methods.trained.training.local_training import ClientRound
from fedran.methods.trained.training.method import TrainedMethod
from fedran.methods.trained.training.rows import network_input


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
