"""FediCaRL: exemplars of old classes in every client's batches, and a distilling teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedran.core.errors import Refused
from fedran.methods.trained.training import workbench
from fedran.methods.trained.training.herding import herd, quotas
from fedran.methods.trained.training.lazy_torch import Tensor, torch
from fedran.methods.trained.training.state import Memory, State, Work
from fedran.methods.trained.training.tensors import Rows
from fedran.methods.trained.training.trainer import Trained

if TYPE_CHECKING:
    from fedran.methods.trained.training.networks import Network


@dataclass(frozen=True)
class FediCaRL(Trained):
    """Cross-entropy over all logits on new rows and exemplars, plus distillation.

    ``corrected``: every client keeps at most ``memory_size`` exemplars of its own, chosen by
    herding under the final global model of each task, the same number of each class; rows are
    given the class with the nearest mean of exemplars, for which clients send sums a class.
    ``as_published``: every client keeps all its old rows, draws ``memory_size`` of them anew in
    every round, and the linear head decides.
    """

    logits: Literal["new", "all"] = "all"
    memory_size: int = 2000
    strength: float = 1.0
    temperature: float = 2.0
    flavour: Literal["corrected", "as_published"] = "corrected"

    title = "FediCaRL"
    verified = (
        "partly: herding, buffer, nearest mean and loss tested; the schedule is that of the "
        "published code, its accuracy was not checked"
    )
    closes = True
    keeps_teacher = True

    def rows(self, work: Work) -> Rows:
        """The task's rows and the exemplars."""
        kept = buffer(work)
        if kept is None:
            return work.rows
        if self.flavour == "as_published" and len(kept) > self.memory_size:
            drawn = torch.randperm(len(kept), generator=work.random)[: self.memory_size]
            kept = kept[drawn.to(kept.codes.device)]
        return work.rows + kept

    def loss(self, work: Work, X: Tensor, codes: Tensor) -> Tensor:
        """CE over all logits + strength x KD of the old ones."""
        return self.taught(work, X, codes, self.strength, self.temperature)

    def close(self, work: Work) -> Memory:
        """Fill the buffer; send the sum of the exemplars' unit features for each class held."""
        kept = buffer(work)
        found = work.rows if kept is None else kept + work.rows
        if not len(found):
            return {}
        if self.flavour == "as_published":
            remember(work, found)
            return {}
        network = workbench.teacher(self.network, work.weights, self.where)
        remember(work, self._exemplars(network, kept, work.rows))
        return self._class_sums(network, buffer(work))

    def _exemplars(self, network: Network, kept: Rows | None, new: Rows) -> Rows:
        """Old classes keep their first exemplars, new ones are herded."""
        both = new if kept is None else kept + new
        old = 0 if kept is None else len(kept)
        classes, counts = (t.tolist() for t in both.codes.unique(return_counts=True))
        chosen = []
        for c, quota in zip(classes, quotas(counts, self.memory_size), strict=True):
            where = (both.codes == c).nonzero().squeeze(1)
            if bool((where < old).any()):
                chosen.append(where[where < old][:quota])
            else:
                chosen.append(where[herd(self._unit(network, both.X[where]), quota)])
        return both[torch.cat(chosen)]

    def _unit(self, network: Network, X: Tensor) -> Tensor:
        return torch.nn.functional.normalize(workbench.in_batches(network.body, X), dim=1)

    def _class_sums(self, network: Network, kept: Rows | None) -> Memory:
        assert kept is not None
        unit = self._unit(network, kept.X)
        held, where = kept.codes.unique(return_inverse=True)
        sums = torch.zeros(len(held), unit.shape[1], device=unit.device)
        return {"held": held, "sums": sums.index_add(0, where, unit)}

    def take_closing(self, state: State, sent: list[Memory]) -> State:
        """Means of the exemplars of all clients, one a class."""
        if self.flavour == "as_published":
            return state
        width = state.weights["head.weight"].shape[1]
        sums = torch.zeros(len(state.classes), width, device=self.where)
        for part in [checked_sums(part, sums) for part in sent if part]:
            sums.index_add_(0, part["held"], part["sums"])
        state.extra["means"] = torch.nn.functional.normalize(sums, dim=1)
        return state

    def scores(self, state: State, network: Network, X: Tensor) -> Tensor:
        """Cosine to the class means; before the first closing round, and as published, logits."""
        means = state.extra.get("means")
        if means is None or len(means) != len(state.classes):
            return super().scores(state, network, X)
        scores = self._unit(network, X) @ means.T
        return scores.masked_fill(~means.any(1), -torch.inf)


def checked_sums(part: Memory, like: Tensor) -> Memory:
    """A client's class sums: one row for each of some classes, finite."""
    held, sums = part.get("held"), part.get("sums")
    if held is None or sums is None or held.dtype != torch.int64 or held.ndim != 1:
        raise Refused("closing", "class numbers and sums", sorted(part))
    if sums.dtype != torch.float32 or sums.shape != (len(held), like.shape[1]):
        expected = f"float32 {[len(held), like.shape[1]]}"
        raise Refused("sums", expected, f"{sums.dtype} {list(sums.shape)}")
    if len(held) and not 0 <= int(held.min()) <= int(held.max()) < len(like):
        raise Refused("held", f"class numbers below {len(like)}", held.tolist())
    if not bool(sums.isfinite().all()):
        raise Refused("sums", "finite values", "NaN or infinity")
    return part


def buffer(work: Work) -> Rows | None:
    """A client's exemplars."""
    if "exemplars" not in work.memory:
        return None
    return Rows(work.memory["exemplars"], work.memory["exemplar_codes"])


def remember(work: Work, rows: Rows) -> None:
    """Make these the client's exemplars."""
    work.memory["exemplars"], work.memory["exemplar_codes"] = rows.X, rows.codes
