"""FedLwF: learning without forgetting, a frozen copy of the last task's model as teacher."""

from __future__ import annotations

from dataclasses import dataclass

from fedran.methods.trained.training.lazy_torch import Tensor
from fedran.methods.trained.training.state import Work
from fedran.methods.trained.training.trainer import Trained


@dataclass(frozen=True)
class FedLwF(Trained):
    """New-class cross-entropy plus distillation of the old logits on the client's new rows."""

    strength: float = 3.0
    temperature: float = 2.0

    title = "FedLwF"
    verified = (
        "partly: loss, frozen teacher and averaging tested; the schedule is that of the published "
        "code, its accuracy was not checked"
    )
    closes = True
    keeps_teacher = True

    def loss(self, work: Work, X: Tensor, codes: Tensor) -> Tensor:
        """CE over new-class logits + strength x KD of the first ``known`` logits."""
        return self.taught(work, X, codes, self.strength, self.temperature)
