"""FedEWC: elastic weight consolidation, each client with its own Fisher information."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedran.methods.trained.training import workbench
from fedran.methods.trained.training.lazy_torch import Tensor, Weights, torch
from fedran.methods.trained.training.local import batches, prepare_norm
from fedran.methods.trained.training.losses import all_class_loss, elastic_penalty
from fedran.methods.trained.training.messages import below, within
from fedran.methods.trained.training.state import Memory, Work
from fedran.methods.trained.training.tensors import inputs
from fedran.methods.trained.training.trainer import Trained

if TYPE_CHECKING:
    from fedran.methods.trained.training.networks import Network

LARGEST_FISHER = 1e-4


@dataclass(frozen=True)
class FedEWC(Trained):
    """New-class cross-entropy plus strength / 2 x sum F (theta - theta*)^2.

    ``corrected``: the penalty acts on the model in training; F and theta* are fixed at the end of
    each task from the final global model. F stays with the client: no extra upload.
    ``as_published``: the penalty is computed on the model that was received, which is not in
    training, so it has no gradient; F and theta* are overwritten after every round.
    """

    weight_decay: float = 0.0
    strength: float = 1000.0
    flavour: Literal["corrected", "as_published"] = "corrected"

    title = "FedEWC"
    verified = (
        "partly: Fisher, penalty and pull of the anchor tested; the schedule is that of the "
        "published code, its accuracy was not checked"
    )

    @property
    def closes(self) -> bool:  # type: ignore[override]
        """The anchor is taken from the final model of a task."""
        return self.flavour == "corrected"

    def loss(self, work: Work, X: Tensor, codes: Tensor) -> Tensor:
        """CE over new-class logits + strength x the penalty."""
        value = self.classification(work, work.student(inputs(X)), codes)
        anchor, fisher = within("anchor", work.memory), within("fisher", work.memory)
        if not work.known or not anchor:
            return value
        trained = dict(work.student.named_parameters())
        weights = trained if self.flavour == "corrected" else work.weights
        return value + self.strength * elastic_penalty(weights, anchor, fisher)

    def after_round(self, work: Work) -> None:
        """As published: anchor and Fisher of the local model, again after every round."""
        if self.flavour == "as_published":
            self._remember(work, work.student)

    def close(self, work: Work) -> Memory:
        """Anchor and Fisher of the final global model on the client's rows."""
        if len(work.rows):
            self._remember(work, workbench.student(self.network, work.weights, self.where))
        return {}

    def _remember(self, work: Work, network: Network) -> None:
        fresh = fisher_information(network, work, self.batch, self.where)
        old = within("fisher", work.memory)
        anchor = {n: p.detach().clone() for n, p in network.named_parameters()}
        share = work.known / len(work.classes)
        work.memory.update(below("fisher", blended(old, fresh, share)))
        work.memory.update(below("anchor", anchor))


def fisher_information(network: Network, work: Work, size: int, device: str) -> Weights:
    """Mean over batches of the squared gradient of CE over all logits, at most 1e-4 an entry."""
    total: Weights = {n: torch.zeros_like(p) for n, p in network.named_parameters()}
    prepare_norm(network, len(work.rows))
    count = 0
    for batch in batches(len(work.rows), size, work.random):
        part = work.rows[batch.to(device)]
        network.zero_grad(set_to_none=True)
        with workbench.fast(network, device):
            value = all_class_loss(network(inputs(part.X)), part.codes)
        value.backward()
        for name, parameter in network.named_parameters():
            total[name] += parameter.grad**2
        count += 1
    network.zero_grad(set_to_none=True)
    return {n: (t / max(1, count)).clamp(max=LARGEST_FISHER) for n, t in total.items()}


def blended(old: Weights, new: Weights, share: float) -> Weights:
    """share x old + (1 - share) x new; rows that the old one does not have are the new one's."""
    mixed = {}
    for name, fresh in new.items():
        fresh = fresh.clone()
        then = old.get(name)
        if then is not None:
            fresh[: len(then)] = share * then + (1 - share) * fresh[: len(then)]
        mixed[name] = fresh
    return mixed
