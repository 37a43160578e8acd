"""AdaptFormer adapters (Chen et al. 2022), trained federated in task 0.

The fine-tuning of the published STSA code: every block of the ViT gets an adapter beside its MLP,
x -> scale x up(relu(down(x))), which starts at 0 because ``up`` does. Clients train the adapters
and a cosine classifier over the classes of task 0 with SGD, the server averages them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedran.settings import at_least, below_one, positive
from fedran_bench.methods.prompted.base import PromptedMethod
from fedran_bench.methods.prompted.frozen_vit import Embedded, find_weights
from fedran_bench.methods.prompted.lora import random_down
from fedran_bench.methods.trained.fedavg import ServerState
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights, torch
from fedran_bench.methods.trained.local_training import ClientRound, seeded_random
from fedran_bench.methods.trained.messages import pack_tensors, unpack_tensors
from fedran_bench.methods.trained.weights import Averaging, check_weights

if TYPE_CHECKING:
    from fedran.backbones.vit import Adapter

ADAPTERS = "adapters"
"""Kind of the message with the final adapters."""
PARTS = ("down.weight", "down.bias", "up.weight", "up.bias")
"""Tensors of all adapters, the blocks along the first axis."""


@dataclass(frozen=True)
class AdapterTuning(PromptedMethod):
    """The rounds of task 0. Nothing is trained afterwards."""

    bottleneck: Annotated[int, at_least(1)] = 16
    """Hidden width of an adapter. Published: 64 for a ViT of width 768."""
    scale: Annotated[float, positive] = 0.1
    """Factor of an adapter's output."""
    dropout: Annotated[float, below_one] = 0.1
    """Share of an adapter's hidden values that are set to 0 in training."""
    n_rounds: Annotated[int, at_least(1)] = 10
    """Training rounds in task 0."""
    epochs: Annotated[int, at_least(1)] = 2
    """Passes over a client's rows in one round."""
    lr: Annotated[float, positive] = 0.2
    """Learning rate of SGD in the first round. It falls to 0 over the rounds."""
    momentum: Annotated[float, below_one] = 0.9
    """Momentum of SGD."""
    weight_decay: Annotated[float, at_least(0)] = 5e-4
    """Weight decay of SGD."""
    averaging: Averaging = "unweighted"
    """All clients count equally, or in proportion to their rows."""

    title = "Adapters"
    uses_query = False
    sends = "adapters and a cosine classifier in every round of the fine-tuning"
    verified = "fine-tuning partly: parts tested, images are not augmented"

    @property
    def width(self) -> int:
        """Features of the network."""
        return self.vit.sizes.width

    @property
    def source(self) -> Mapping[str, str]:
        """Backbone, weights and preprocessing of the network without adapters."""
        return _source(self.weights)

    def start_task(self, state: ServerState) -> ServerState:
        """Adapters that change nothing yet, and a classifier over the classes of the task."""
        new = {**self.new_adapters(state.seed), "head.scale": torch.ones(1)}
        new = {name: tensor.to(self.torch_device) for name, tensor in new.items()}
        return replace(state, weights={"head.weight": state.weights["head.weight"], **new})

    def new_adapters(self, seed: int) -> Weights:
        """Adapters that change nothing."""
        depth, width, h = self.vit.sizes.depth, self.vit.sizes.width, self.bottleneck
        return {
            "down.weight": random_down(depth, h, width, random=seeded_random("adapters", seed)),
            "down.bias": torch.zeros(depth, h),
            "up.weight": torch.zeros(depth, width, h),
            "up.bias": torch.zeros(depth, width),
        }

    def first_trained(self, task: int, known: int) -> dict[str, int]:
        """Everything."""
        return dict.fromkeys((*PARTS, "head.weight", "head.scale"), 0)

    def features(self, weights: Weights, X: Embedded, task: int | None = None) -> Tensor:
        """The class token of the network with adapters; with dropout in training."""
        dropout = 0.0 if task is None else self.dropout
        adapters = adapter_functions(weights, self.scale, dropout)
        return self.vit.network.encode(X.tokens, adapters=adapters)[:, 0].float()

    def class_scores(self, weights: Weights, features: Tensor) -> Tensor:
        """scale x cosine of features and class weights."""
        unit = torch.nn.functional.normalize
        return weights["head.scale"] * unit(features, dim=1) @ unit(weights["head.weight"], dim=1).T

    def optimiser(self, groups: list[dict[str, Any]]) -> Any:
        """SGD. The fused one reads its rate from the GPU, as recorded steps need it."""
        fused = self.torch_device.startswith("cuda") or None
        return torch.optim.SGD(
            groups, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, fused=fused
        )

    def rate_share(self, epoch: int) -> float:
        """Half a cosine over the rounds; the rate is constant within a round."""
        return (1 + math.cos(math.pi * (epoch // self.epochs) / self.n_rounds)) / 2

    def train(self, client: ClientRound) -> tuple[Weights, int]:
        """As in the base class, with dropout that depends on the client's random numbers only."""
        seed = int(torch.randint(2**62, (), generator=client.random))
        devices = [self.torch_device] if self.torch_device.startswith("cuda") else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            return super().train(client)

    def final_adapters(self, state: ServerState) -> bytes:
        """The adapters without the classifier, as they travel after the last round."""
        return pack_tensors(ADAPTERS, {}, {name: state.weights[name] for name in PARTS})

    def adapted_features(self, adapters: bytes, X: NDArray[Any]) -> NDArray[np.float32]:
        """Features (n, width) of uint8 images (n, h, w, 3), always computed in float32."""
        received = unpack_tensors(ADAPTERS, adapters, self.torch_device).tensors
        weights = check_weights(received, self.new_adapters(0), "the adapters")
        exact = replace(self, precision="float32")
        found = exact.evaluate(X, lambda part: exact.features(weights, part))
        return np.asarray(found.cpu().numpy())


def adapter_functions(weights: Mapping[str, Tensor], scale: float, dropout: float) -> list[Adapter]:
    """One function per block: tokens -> scale x up(dropout(relu(down(tokens))))."""
    linear = torch.nn.functional.linear

    def adapter(down: Tensor, down_bias: Tensor, up: Tensor, up_bias: Tensor) -> Adapter:
        def adapt(tokens: Tensor) -> Tensor:
            a, b, c, d = (t.to(tokens.dtype) for t in (down, down_bias, up, up_bias))
            hidden = torch.nn.functional.dropout(linear(tokens, a, b).relu(), dropout)
            return scale * linear(hidden, c, d)

        return adapt

    return [adapter(*parts) for parts in zip(*(weights[name] for name in PARTS), strict=True)]


@lru_cache(maxsize=4)
def _source(path: str) -> Mapping[str, str]:
    from fedran.backbones.vit import vit_backbone

    return vit_backbone(find_weights(path), "cpu").source
