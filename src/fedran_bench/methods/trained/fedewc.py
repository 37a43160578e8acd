"""FedEWC: elastic weight consolidation, each client with its own Fisher information."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

from fedran.settings import at_least
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights, load_torch, torch
from fedran_bench.methods.trained.local_training import (
    ClientRound,
    Memory,
    Precision,
    autocast,
    batches,
    cross_entropy,
    set_training_mode,
)
from fedran_bench.methods.trained.messages import add_prefix, strip_prefix
from fedran_bench.methods.trained.method import TrainedMethod
from fedran_bench.methods.trained.rows import Rows, network_input
from fedran_bench.methods.trained.weights import student_network

if TYPE_CHECKING:
    from fedran_bench.methods.trained.networks import Network

LARGEST_FISHER = 1e-4


@dataclass(frozen=True)
class FedEWC(TrainedMethod):
    """New-class cross-entropy plus strength / 2 x sum F (theta - theta*)^2.

    F and theta* are fixed at the end of each task from the final global model. F stays with the
    client: no extra upload. In the published code the penalty has no effect: it is computed on the
    received model, which is not in training, so it has no gradient.
    """

    weight_decay: Annotated[float, at_least(0)] = 0.0
    """Weight decay of SGD."""
    strength: Annotated[float, at_least(0)] = 1000.0
    """Weight of the penalty."""

    title = "FedEWC"
    verified = "partly: Fisher, penalty and pull of the anchor tested; accuracy was not checked"
    has_closing_round = True

    def loss_memory(self, client: ClientRound) -> Memory:
        """Anchor and Fisher information."""
        kept = client.memory.items()
        return {n: t for n, t in kept if n.startswith(("anchor/", "fisher/")) and client.known}

    def loss(self, client: ClientRound, X: Tensor, codes: Tensor) -> Tensor:
        """Cross-entropy over the new logits + strength x the penalty."""
        value = self.classification_loss(client, client.student(network_input(X)), codes)
        anchor = strip_prefix("anchor", client.memory)
        if not client.known or not anchor:
            return value
        trained = dict(client.student.named_parameters())
        fisher = strip_prefix("fisher", client.memory)
        return value + self.strength * elastic_penalty(trained, anchor, fisher)

    def close_task(self, client: ClientRound) -> Memory:
        """Keep anchor and Fisher information of the final global model on the client's rows."""
        if not len(client.rows):
            return {}
        network = student_network(self.network, client.weights, self.torch_device)
        new = fisher_information(
            network, client.rows, self.batch, client.random, self.torch_device, self.precision
        )
        old = strip_prefix("fisher", client.memory)
        anchor = {n: p.detach().clone() for n, p in network.named_parameters()}
        old_share = client.known / len(client.classes)
        client.memory.update(add_prefix("fisher", blend_fisher(old, new, old_share)))
        client.memory.update(add_prefix("anchor", anchor))
        return {}


def elastic_penalty(
    weights: Mapping[str, Tensor], anchor: Mapping[str, Tensor], fisher: Mapping[str, Tensor]
) -> Tensor:
    """1/2 sum F (theta - theta*)^2. Rows that the anchor does not have are left out."""
    found = [
        weights[n] if len(weights[n]) == len(fixed) else weights[n][: len(fixed)]
        for n, fixed in anchor.items()
    ]
    return _penalty().apply(list(anchor.values()), [fisher[n] for n in anchor], *found)


@lru_cache(maxsize=1)
def _penalty() -> Any:
    """The penalty with its gradient F (theta - theta*), each in a few kernels for all tensors.

    It is defined on first use, because settings can be listed without torch.
    """

    class Penalty(load_torch().autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, anchor: list[Tensor], fisher: list[Tensor], *weights: Tensor) -> Any:
            moved = torch._foreach_sub(list(weights), anchor)
            ctx.pull = torch._foreach_mul(moved, fisher)
            products = torch._foreach_mul(moved, ctx.pull)
            return 0.5 * torch.stack(torch._foreach_norm(products, 1)).sum()  # none is negative

        @staticmethod
        def backward(ctx: Any, slope: Tensor) -> Any:
            return None, None, *torch._foreach_mul(ctx.pull, slope)

    return Penalty


def fisher_information(
    network: Network,
    rows: Rows,
    batch_size: int,
    random: Any,
    device: str,
    precision: Precision = "float32",
) -> Weights:
    """Mean over batches of the squared gradient of the cross-entropy; entries are at most 1e-4."""
    total: Weights = {n: torch.zeros_like(p) for n, p in network.named_parameters()}
    set_training_mode(network, len(rows))
    count = 0
    for batch in batches(len(rows), batch_size, random):
        part = rows[batch.to(device)]
        network.zero_grad(set_to_none=True)
        with autocast(device, precision):
            value = cross_entropy(network(network_input(part.X)), part.codes)
        value.backward()
        for name, parameter in network.named_parameters():
            total[name] += parameter.grad**2
        count += 1
    network.zero_grad(set_to_none=True)
    return {n: (t / max(1, count)).clamp(max=LARGEST_FISHER) for n, t in total.items()}


def blend_fisher(old: Weights, new: Weights, old_share: float) -> Weights:
    """old_share x old + (1 - old_share) x new; rows that ``old`` does not have are copied."""
    blended = {}
    for name, values in new.items():
        values = values.clone()
        before = old.get(name)
        if before is not None:
            rows = len(before)
            values[:rows] = old_share * before + (1 - old_share) * values[:rows]
        blended[name] = values
    return blended
