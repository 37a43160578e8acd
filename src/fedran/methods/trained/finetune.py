"""Finetune: FedAvg on the new classes alone, with nothing against forgetting."""

from __future__ import annotations

from dataclasses import dataclass

from fedran.methods.trained.training.lazy_torch import Tensor
from fedran.methods.trained.training.state import Work
from fedran.methods.trained.training.tensors import inputs
from fedran.methods.trained.training.trainer import Trained


@dataclass(frozen=True)
class Finetune(Trained):
    """Cross-entropy over the logits of the task's own classes."""

    title = "Finetune"
    verified = (
        "partly: loss and averaging against hand-written ones; the schedule is that of the "
        "published code, its accuracy was not checked"
    )

    def loss(self, work: Work, X: Tensor, codes: Tensor) -> Tensor:
        """CE over new-class logits."""
        return self.classification(work, work.student(inputs(X)), codes)
