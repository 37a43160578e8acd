"""PILoRA: a low-rank change of the first attention per task, and prototypes as classifier.

Guo et al., "PILoRA: Prototype Guided Incremental LoRA for Federated Class-Incremental Learning",
2024.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fedran.settings import at_least, positive
from fedran_bench.methods.prompted.base import PromptedMethod, add_rows
from fedran_bench.methods.prompted.frozen_vit import ROWS_PER_PASS, Embedded
from fedran_bench.methods.prompted.lora import changed_features, random_down
from fedran_bench.methods.prompted.steps import with_rows
from fedran_bench.methods.protocol import Spec
from fedran_bench.methods.trained.fedavg import ServerState
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights, torch
from fedran_bench.methods.trained.local_training import ClientRound, cross_entropy, seeded_random
from fedran_bench.methods.trained.weights import average

LAYER = "blocks.0.attn.qkv"


@dataclass(frozen=True)
class PILoRA(PromptedMethod):
    """A LoRA pair for the queries and one for the values of block 0, new in every task.

    The score of a class is minus the distance between the features and its prototype. Prototypes
    and pairs of earlier tasks are frozen. A client also sends the mean features of its classes,
    by which the server weights the clients' prototypes.

    ``corrected``: the network has the sum of the pairs of all tasks so far, in training and in
    inference. ``as_published``: task t trains its pair alone, and the network that predicts keeps
    the pair of task 0, because the published code looks for the others under wrong names.
    """

    rank: Annotated[int, at_least(1)] = 4
    """Rank of a change."""
    lr: Annotated[float, positive] = 1e-4
    """Learning rate of the pairs, with Adam. Published: 1e-5, for 300 epochs."""
    head_lr: Annotated[float | None, positive] = 0.1
    """Learning rate of the prototypes; without it ``lr``. Published: 0.002, for 300 epochs."""
    weight_decay: Annotated[float, at_least(0)] = 1e-5
    """Weight decay of Adam."""
    scale: Annotated[float, positive] = 1.0
    """Factor of the distances in the cross-entropy. Published: 1, for another network."""
    attraction: Annotated[float, at_least(0)] = 0.001
    """Weight of the mean distance to the prototype of the own class."""
    sparsity: Annotated[float, at_least(0)] = 0.01
    """Weight of the sum of absolute values of the task's down matrices."""
    orthogonality: Annotated[float, at_least(0)] = 0.5
    """Weight of the absolute products of the task's down matrices with those of earlier tasks."""
    temperature: Annotated[float, positive] = 0.2
    """Of the softmax over clients that averages prototypes."""
    flavour: Literal["corrected", "as_published"] = "corrected"
    """Which version of the method runs."""

    title = "PILoRA"
    uses_query = False
    sends = "a LoRA pair, prototypes and class means of the task, float32, every round"
    verified = "partly: losses, distances and averages tested; published with a DINO ViT-B/16"

    def init(self, spec: Spec, seed: int) -> ServerState:
        """No classes; prototypes need no bias."""
        state = super().init(spec, seed)
        return replace(state, weights={"head.weight": state.weights["head.weight"]})

    def start_task(self, state: ServerState) -> ServerState:
        """A new pair that changes nothing yet, and small random prototypes for new classes."""
        width, known = self.vit.sizes.width, state.known
        random = seeded_random("pilora", state.seed, state.task)
        prototypes = state.weights["head.weight"].clone()
        fresh = 0.1 * torch.randn((len(prototypes) - known, width), generator=random)
        prototypes[known:] = fresh.to(prototypes)
        new = {
            "down": random_down(1, 2, self.rank, width, random=random),
            "up": torch.zeros(1, 2, width, self.rank),
        }
        new = {name: tensor.to(self.torch_device) for name, tensor in new.items()}
        weights = {**state.weights, "head.weight": prototypes}
        return replace(state, weights=add_rows(weights, new))

    def first_trained(self, task: int, known: int) -> dict[str, int]:
        """The newest pair and the prototypes of the new classes."""
        return {"down": task, "up": task, "head.weight": known}

    def features(self, weights: Weights, X: Embedded, task: int | None = None) -> Tensor:
        """The class token of the network with the pairs that the flavour uses."""
        up, down = weights["up"], weights["down"]
        if self.flavour == "as_published":
            used = slice(task or 0, (task or 0) + 1)
            up, down = up[used], down[used]
        queries, values = (up @ down).sum(0)
        change = torch.cat([queries, torch.zeros_like(queries), values])
        return changed_features(self.vit, self.weights, X.tokens, {LAYER: change})

    def class_scores(self, weights: Weights, features: Tensor) -> Tensor:
        """Minus the scaled distances to the prototypes."""
        return -self.scale * distances(features, weights["head.weight"])

    def loss(self, client: ClientRound, weights: Weights, X: Embedded, codes: Tensor) -> Tensor:
        """Cross-entropy over all classes so far + attraction + sparsity + orthogonality."""
        scores = self.class_scores(weights, self.features(weights, X, client.task))
        own = -scores.gather(1, codes[:, None]).mean() / self.scale
        *_, down = weights["down"]
        earlier = weights["down"][:-1]
        products = (earlier @ down.mT).abs().sum() if len(earlier) else 0.0
        return (
            cross_entropy(scores, codes)
            + self.attraction * own
            + self.sparsity * down.abs().sum()
            + self.orthogonality * products
        )

    def train(self, client: ClientRound) -> tuple[Weights, int]:
        """Train, then add mean features and row counts of the new classes to the upload."""
        trained, n_rows = super().train(client)
        weights = with_rows(client.weights, trained)
        codes = client.rows.codes - client.known
        sums = torch.zeros_like(trained["head.weight"])
        with torch.no_grad():
            for rows in torch.arange(len(codes), device=codes.device).split(ROWS_PER_PASS):
                found = self.features(weights, client.rows.X[rows], client.task)
                sums.index_add_(0, codes[rows], found)
        counts = codes.bincount(minlength=len(sums)).float()
        means = sums / counts.clamp(min=1)[:, None]
        return {**trained, "means": means, "counts": counts}, n_rows

    def expected_upload(self, state: ServerState) -> Weights:
        """What is trained, class means and row counts."""
        trained = super().expected_upload(state)
        prototypes = trained["head.weight"]
        return {**trained, "means": prototypes, "counts": prototypes[:, 0]}

    def combine(self, state: ServerState, sent: list[tuple[Weights, int]]) -> Weights:
        """Pairs by rows; prototypes by their distances to the class means of all clients."""
        pairs = [({name: w[name] for name in ("up", "down")}, rows) for w, rows in sent]
        prototypes, means, counts = (
            torch.stack([w[name] for w, _ in sent]) for name in ("head.weight", "means", "counts")
        )
        old = state.weights["head.weight"][state.known :]
        merged = average_prototypes(prototypes, means, counts > 0, old, self.temperature)
        new = {**average(pairs, self.averaging), "head.weight": merged}
        return with_rows(state.weights, new)


def distances(features: Tensor, prototypes: Tensor) -> Tensor:
    """sqrt(|f - m|^2 / width) for all features (n, width) and prototypes (C, width)."""
    squares = (features**2).sum(1, keepdim=True) + (prototypes**2).sum(1)
    squares = squares - 2 * features @ prototypes.T
    # The square root has no gradient at 0, which rounding may reach or pass.
    return (squares / features.shape[1]).clamp(min=1e-12).sqrt()


def average_prototypes(
    prototypes: Tensor, means: Tensor, holds: Tensor, old: Tensor, temperature: float
) -> Tensor:
    """One prototype per class from those of the clients (K, C, width).

    For each class, over the clients that hold rows of it: 1 / (sum of distances of a client's
    prototype to the class means of all these clients), scaled to 0 .. 1, divided by the
    temperature, and turned into weights by a softmax. A class that nobody holds keeps ``old``.
    """
    merged = old.clone()
    for c in range(len(old)):
        who = holds[:, c]
        if not bool(who.any()):
            continue
        mine = prototypes[who, c].double()
        sums = distances(mine, means[who, c].double()).sum(1)
        closeness = 1 / sums  # distances are never exactly 0
        span = closeness.max() - closeness.min()
        scaled = (closeness - closeness.min()) / (span if span > 0 else 1)
        merged[c] = (torch.softmax(scaled / temperature, 0) @ mine).float()
    return merged
