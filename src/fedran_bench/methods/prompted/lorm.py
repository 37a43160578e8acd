"""LoRM: low-rank changes of all linear layers, merged in closed form.

Salami et al., "Closed-form merging of parameter-efficient modules for Federated Continual
Learning", 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from fedran.settings import at_least, between, positive
from fedran_bench.methods.prompted.base import PromptedMethod
from fedran_bench.methods.prompted.frozen_vit import ROWS_PER_PASS, Embedded
from fedran_bench.methods.prompted.lora import (
    changed_features,
    input_grams,
    pack_symmetric,
    random_down,
    unpack_symmetric,
)
from fedran_bench.methods.prompted.steps import with_rows
from fedran_bench.methods.trained.fedavg import ServerState
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights, torch
from fedran_bench.methods.trained.local_training import ClientRound, Memory, seeded_random
from fedran_bench.methods.trained.messages import add_prefix, strip_prefix
from fedran_bench.methods.trained.weights import average, check_weights

KINDS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
"""The linear layers of a block. Tensors of one kind are stacked over the blocks."""

SMALLEST_PIVOT = 1e-5
"""Relative to the largest one: below, a Gram counts as singular (condition above about 1e10)."""


@dataclass(frozen=True)
class LoRM(PromptedMethod):
    """A LoRA pair B A for every linear layer, new in every task, and a linear head.

    The first round of a task trains B, the next one A, and so on, so that all clients share the
    other factor. Clients also send the Gram G = X'X of the inputs of every layer under their
    local model, as lower triangles. The server then solves for the factor whose outputs are
    nearest to those of all clients, and in the same way for the rows of the head. In a closing
    round clients send the Grams under the merged model. The network that predicts has, per layer,
    the change whose outputs are nearest to those of the changes of all tasks so far.

    Off-diagonal entries of every Gram are multiplied by ``damping``, as published.
    """

    rank: Annotated[int, at_least(1)] = 1
    """Rank of a change. Published for CIFAR-100: 1 at beta 0.5, 16 at beta 0.1."""
    lr: Annotated[float, positive] = 0.003
    """Learning rate of AdamW. Published for CIFAR-100: 3e-3 at beta 0.5, 3e-4 at beta 0.1."""
    weight_decay: Annotated[float, at_least(0)] = 0.1
    """Weight decay of AdamW."""
    damping: Annotated[float, between(0, 1)] = 0.5
    """Factor of the off-diagonal entries of Grams."""

    title = "LoRM"
    uses_query = False
    has_closing_round = True
    sends = "one LoRA factor, Grams of the inputs of all layers, head rows, float32, every round"
    verified = "partly: merges equal dense least squares; accuracy was not compared"

    def shapes(self) -> dict[str, tuple[int, int]]:
        """(out, in) of each kind of layer."""
        width, hidden = self.vit.sizes.width, self.vit.sizes.hidden
        sizes = ((3 * width, width), (width, width), (hidden, width), (width, hidden))
        return dict(zip(KINDS, sizes, strict=True))

    def start_task(self, state: ServerState) -> ServerState:
        """New pairs that change nothing yet."""
        state = super().start_task(state)
        random = seeded_random("lorm", state.seed, state.task)
        depth, new = self.vit.sizes.depth, {}
        for kind, (rows, columns) in self.shapes().items():
            new[f"down/{kind}"] = random_down(depth, self.rank, columns, random=random)
            new[f"up/{kind}"] = torch.zeros(depth, rows, self.rank)
        new = {name: tensor.to(self.torch_device) for name, tensor in new.items()}
        return replace(state, weights={**state.weights, **new})

    def first_trained(self, task: int, known: int) -> dict[str, int]:
        """Both factors, of which each round trains one, and the head's rows of the new classes."""
        factors = {f"{factor}/{kind}": 0 for factor in ("up", "down") for kind in KINDS}
        return {**factors, "head.weight": known, "head.bias": known}

    def optimiser(self, groups: list[dict[str, Any]]) -> Any:
        """AdamW."""
        fused = self.torch_device.startswith("cuda") or None
        return torch.optim.AdamW(groups, weight_decay=self.weight_decay, fused=fused)

    def features(self, weights: Weights, X: Embedded, task: int | None = None) -> Tensor:
        """The class token with the merged changes, or without any with the task's pairs."""
        up, down = strip_prefix("up", weights), strip_prefix("down", weights)
        pairs = {kind: up[kind] @ down[kind] for kind in KINDS}
        changes = strip_prefix("merged", weights) or pairs
        named = {
            f"blocks.{number}.{kind}": change
            for kind, stack in changes.items()
            for number, change in enumerate(stack)
        }
        return changed_features(self.vit, self.weights, X.tokens, named)

    def train(self, client: ClientRound) -> tuple[Weights, int]:
        """Train one factor and the head, then add the Grams under the local model."""
        resting = factor_of(client.round + 1)
        first = self.first_trained(client.task, client.known)
        start = {
            name: client.weights[name][row:]
            for name, row in first.items()
            if not name.startswith(f"{resting}/")
        }
        sent = self.fit(client, client.rows, start)
        grams = self.grams(with_rows(client.weights, sent), client)
        return {**sent, **grams}, len(client.rows)

    def grams(self, weights: Weights, client: ClientRound) -> Memory:
        """Packed Grams of the inputs of all layers (depth, ...) and of the head."""
        depth, vit = self.vit.sizes.depth, self.vit
        layers = tuple(f"blocks.{i}.{kind}" for kind in KINDS for i in range(depth))
        head = torch.zeros(vit.sizes.width, vit.sizes.width, device=self.torch_device)
        rows = torch.arange(len(client.rows), device=self.torch_device)
        with torch.no_grad(), input_grams(vit, layers) as found:
            for part in rows.split(ROWS_PER_PASS):
                Z = self.features(weights, client.rows.X[part], client.task)
                head += Z.T @ Z
        stacks = {k: torch.stack([found[f"blocks.{i}.{k}"] for i in range(depth)]) for k in KINDS}
        stacks["head"] = head
        return {f"gram/{k}": pack_symmetric(damped(G, self.damping)) for k, G in stacks.items()}

    def expected_grams(self) -> Weights:
        """Tensors of the shapes that ``grams`` has."""
        depth, width = self.vit.sizes.depth, self.vit.sizes.width
        like = {
            f"gram/{kind}": torch.empty(depth, n * (n + 1) // 2)
            for kind, (_, n) in self.shapes().items()
        }
        return {**like, "gram/head": torch.empty(width * (width + 1) // 2)}

    def expected_upload(self, state: ServerState) -> Weights:
        """The factor and the rows that are trained in this round, and the Grams."""
        trained = super().expected_upload(state)
        resting = factor_of(state.round + 1)
        kept = {name: t for name, t in trained.items() if not name.startswith(f"{resting}/")}
        return {**kept, **self.expected_grams()}

    def combine(self, state: ServerState, sent: list[tuple[Weights, int]]) -> Weights:
        """Merged factors and head rows; the bias by rows."""
        factor, new = factor_of(state.round), {}
        for kind, (_, columns) in self.shapes().items():
            G = [unpack_symmetric(w[f"gram/{kind}"], columns) for w, _ in sent]
            factors = [w[f"{factor}/{kind}"] for w, _ in sent]
            down = None if factor == "down" else state.weights[f"down/{kind}"]
            new[f"{factor}/{kind}"] = merge(factors, G, down)
        width = self.vit.sizes.width
        G = [unpack_symmetric(w["gram/head"], width) for w, _ in sent]
        new["head.weight"] = merge([w["head.weight"] for w, _ in sent], G)
        biases = [({"head.bias": w["head.bias"]}, rows) for w, rows in sent]
        return with_rows(state.weights, {**new, **average(biases, self.averaging)})

    def close_task(self, client: ClientRound) -> Memory:
        """The Grams under the merged model of the task."""
        return self.grams(client.weights, client) if len(client.rows) else {}

    def aggregate_closing(self, state: ServerState, sent: list[Memory]) -> ServerState:
        """Add the task to the sums of B A G and of G, from which the merged changes follow."""
        like = self.expected_grams()
        checked = [check_weights(part, like, "Grams of a client") for part in sent if part]
        extra = dict(state.extra)
        for kind, (_, columns) in self.shapes().items() if checked else ():
            G = sum(unpack_symmetric(part[f"gram/{kind}"].double(), columns) for part in checked)
            change = (state.weights[f"up/{kind}"] @ state.weights[f"down/{kind}"]).double()
            products, total = change @ G, G
            if f"products/{kind}" in extra:
                products = products + extra[f"products/{kind}"]
                total = total + unpack_symmetric(extra[f"grams/{kind}"].double(), columns)
            extra[f"products/{kind}"] = products.float()
            extra[f"grams/{kind}"] = pack_symmetric(total).float()
            extra[f"merged/{kind}"] = divide(products, total).float()
        return replace(state, extra=extra)

    def deployed(self, state: ServerState) -> Weights:
        """The head and the merged changes of all tasks."""
        return {**state.weights, **add_prefix("merged", strip_prefix("merged", state.extra))}


def factor_of(round_: int) -> str:
    """The factor that a round trains."""
    return "down" if round_ % 2 else "up"


def merge(matrices: list[Tensor], grams: list[Tensor], down: Tensor | None = None) -> Tensor:
    """The matrix M that minimises sum_k |(M - M_k) D X_k'|^2, with the Grams G_k = X_k'X_k.

    D is ``down``, or the identity: M = (sum M_k D G_k D') (sum D G_k D')^+. Leading axes are
    batches. Computed in float64.
    """
    seen = [G.double() for G in grams]
    if down is not None:
        D = down.double()
        seen = [D @ G @ D.mT for G in seen]
    total = torch.stack([M.double() @ G for M, G in zip(matrices, seen, strict=True)]).sum(0)
    return divide(total, torch.stack(seen).sum(0)).float()


def divide(products: Tensor, G: Tensor) -> Tensor:
    """P G^+ for symmetric, positive semi-definite G (..., m, m) in float64.

    By Cholesky factors, which are far cheaper than a pseudo-inverse, unless some G is nearly
    singular.
    """
    L, info = torch.linalg.cholesky_ex(G)
    pivots = torch.diagonal(L, dim1=-2, dim2=-1)
    if bool((info == 0).all() & (pivots.amin(-1) > SMALLEST_PIVOT * pivots.amax(-1)).all()):
        return torch.cholesky_solve(products.mT, L).mT
    return products @ torch.linalg.pinv(G, hermitian=True)


def damped(G: Tensor, damping: float) -> Tensor:
    """G with its off-diagonal entries multiplied by a factor."""
    diagonal = torch.diag_embed(torch.diagonal(G, dim1=-2, dim2=-1))
    return damping * G + (1 - damping) * diagonal
