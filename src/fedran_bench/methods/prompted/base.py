"""The base class of methods that train a few tensors of a frozen ViT with FedAvg.

The global model is a set of named tensors. In each task a client trains the last rows of some of
them, for example the prompt of the task and the head's rows of its classes. Only these rows are
uploaded. The download has all tensors, so that clients keep nothing between rounds.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.core.labels import Label
from fedran.settings import at_least, positive
from fedran_bench.methods.prompted.frozen_vit import (
    ROWS_PER_PASS,
    Embedded,
    FrozenViT,
    find_weights,
    frozen_vit,
    vit_sizes,
)
from fedran_bench.methods.prompted.steps import Step, recorded_step, with_rows
from fedran_bench.methods.protocol import ClientData, Spec
from fedran_bench.methods.trained.fedavg import FedAvg, ServerState
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights, torch
from fedran_bench.methods.trained.local_training import (
    ClientRound,
    Precision,
    batches,
    cross_entropy,
)
from fedran_bench.methods.trained.method import IMAGE_SIDE
from fedran_bench.methods.trained.recorded import require_gpu
from fedran_bench.methods.trained.rows import (
    Rows,
    as_tensor,
    client_rows,
    once_per_task,
    to_device_async,
)
from fedran_bench.methods.trained.weights import Averaging, average

HEAD_START = 0.01
"""Factor of the head's new rows, which are drawn by Kaiming's rule."""
VIT = "weights/vit_tiny_patch16_224.safetensors"


@dataclass(frozen=True)
class PromptedMethod(FedAvg, ABC):
    """A frozen ViT, trained tensors and a linear head on the class token.

    A subclass says which rows of which tensors are trained in a task (``first_trained``), how they
    start (``start_task``) and how they change the network (``features``). Images are not augmented.
    """

    weights: str = VIT
    """The frozen ViT: a .safetensors file with timm's names, in the current folder or below
    ``FEDRAN_DATA``."""
    image_size: Annotated[int | None, IMAGE_SIDE] = None
    """Images are resized to squares of this side before they reach the method, in pixels. Needed
    where they have different sizes. The method resizes them to the size of the ViT in any case."""
    n_rounds: Annotated[int, at_least(1)] = 5
    """Training rounds per task."""
    epochs: Annotated[int, at_least(1)] = 5
    """Passes over a client's rows in one round."""
    batch: Annotated[int, at_least(1)] = 128
    """Rows per batch."""
    lr: Annotated[float, positive] = 0.001
    """Learning rate of Adam. It falls to almost 0 over all epochs of a task, across its rounds."""
    head_lr: Annotated[float | None, positive] = None
    """Learning rate of the head; without it ``lr``."""
    weight_decay: Annotated[float, at_least(0)] = 0.0
    """Weight decay of Adam."""
    averaging: Averaging = "weighted"
    """All clients count equally, or in proportion to their rows."""
    precision: Precision = "float32"
    """``bfloat16``: the frozen network computes in bfloat16, which is faster on a GPU. Trained
    tensors, losses and messages are float32."""
    execution: Literal["eager", "recorded"] = "eager"
    """``recorded`` replays the steps as CUDA graphs, which is faster. Not in the results."""

    input: ClassVar[Literal["images"]] = "images"
    uses_query: ClassVar[bool] = True
    """Whether the method needs the features of the network without prompts."""

    @property
    def name(self) -> str:
        """The title, and the flavour if it is the published one."""
        published = getattr(self, "flavour", "") == "as_published"
        return f"{self.title} (as published)" if published else self.title

    @property
    def vit(self) -> FrozenViT:
        """The frozen network on this method's device."""
        return frozen_vit(self.weights, self.torch_device, self.precision)

    @property
    def weights_hash(self) -> str:
        """SHA-256 of the file with the frozen weights."""
        path = find_weights(self.weights)
        file = path / "model.safetensors" if path.is_dir() else path
        return hashlib.sha256(file.read_bytes()).hexdigest()

    @abstractmethod
    def first_trained(self, task: int, known: int) -> dict[str, int]:
        """For each tensor that is trained in a task: its first trained row.

        ``known`` is the number of classes of earlier tasks. 0: the whole tensor is trained.
        """

    @abstractmethod
    def features(self, weights: Weights, X: Embedded, task: int | None = None) -> Tensor:
        """Features (n, width) in float32. ``task``: training in this task; None: inference."""

    def loss(self, client: ClientRound, weights: Weights, X: Embedded, codes: Tensor) -> Tensor:
        """The value to minimise on one batch: cross-entropy over the classes of the task.

        ``weights`` is the whole model. Only the rows in training have a gradient.
        """
        logits = self.class_scores(weights, self.features(weights, X, client.task))
        return cross_entropy(logits, codes, client.known)

    def class_scores(self, weights: Weights, features: Tensor) -> Tensor:
        """Scores (n, C) of all classes in the order of the head's rows."""
        return torch.nn.functional.linear(features, weights["head.weight"], weights["head.bias"])

    def require_possible(self, n_tasks: int) -> None:
        """ValueError where the settings do not suit device or ViT. The runner asks first."""
        require_gpu(self.execution, self.torch_device)

    def require_blocks(self, needed: int, settings: str) -> None:
        """ValueError where the ViT has fewer blocks than these settings need."""
        depth = vit_sizes(self.weights).depth
        if needed > depth:
            blocks = f"{depth}, the blocks of the network, got {needed}"
            raise ValueError(f"{settings} must be at most {blocks}")

    def init(self, spec: Spec, seed: int) -> ServerState:
        """A head without classes; ``start_task`` adds the other tensors."""
        self.require_possible(len(spec.task_classes))
        width, device = self.vit.sizes.width, self.torch_device
        head = {
            "head.weight": torch.zeros(0, width, device=device),
            "head.bias": torch.zeros(0, device=device),
        }
        return ServerState(spec, seed, head)

    def start_task(self, state: ServerState) -> ServerState:
        """New rows of the head start small: features of a ViT are long, and rows by Kaiming's rule
        would start with large logits.
        """
        weight = state.weights["head.weight"].clone()
        weight[state.known :] *= HEAD_START
        return replace(state, weights={**state.weights, "head.weight": weight})

    def local_rows(self, data: ClientData, classes: tuple[Label, ...]) -> Rows:
        """The labelled rows as ``Embedded`` images, which stay on the device for the task."""
        how = f"{self.weights} {self.torch_device} {self.precision} {self.uses_query}"
        X = once_per_task(data, how, lambda: self.embedded(data.X))
        return client_rows(data, classes, self.torch_device, X)

    def embedded(self, X: NDArray[Any]) -> Embedded:
        """uint8 images (n, h, w, 3) on the device."""
        return self.vit.embed(as_tensor(X, self.torch_device), self.uses_query)

    def train(self, client: ClientRound) -> tuple[Weights, int]:
        """Train the task's rows of the model with a fresh optimiser."""
        first = self.first_trained(client.task, client.known)
        start = {name: client.weights[name][row:] for name, row in first.items()}
        return self.fit(client, self.training_rows(client), start), len(client.rows)

    def training_rows(self, client: ClientRound) -> Rows:
        """The client's rows. A method can add ``extra`` tensors that its loss needs."""
        return client.rows

    def optimiser(self, groups: list[dict[str, Any]]) -> Any:
        """A fresh optimiser for groups of tensors with their learning rates."""
        fused = self.torch_device.startswith("cuda") or None
        return torch.optim.Adam(groups, weight_decay=self.weight_decay, fused=fused)

    def fit(self, client: ClientRound, rows: Rows, start: Weights) -> Weights:
        """Minimise ``loss`` on batches of rows over some rows of the model, from their ``start``.

        Raises ValueError if the result is not finite.
        """
        make = recorded_step if self.execution == "recorded" else Step
        step = make(self, client, start)
        for epoch in range(self.epochs):
            step.set_rates(self.rate_share(client.round * self.epochs + epoch))
            parts = batches(len(rows), self.batch, client.random)
            order = to_device_async(torch.cat(parts), self.torch_device)
            for batch in order.split([len(part) for part in parts]):
                step(rows[batch])
        trained = {name: t.detach().clone() for name, t in step.trained.items()}
        if not bool(torch.stack([t.isfinite().all() for t in trained.values()]).all()):
            raise ValueError(
                f"training of {self.title} diverged: values are no longer finite at "
                f"lr = {self.lr:g}; lower lr"
            )
        return trained

    def rate_share(self, epoch: int) -> float:
        """Share of the learning rate in one of all epochs of a task, counted across its rounds."""
        epochs = self.n_rounds * self.epochs
        return math.cos(0.99 * math.pi / 2 * epoch / max(1, epochs - 1))

    def expected_upload(self, state: ServerState) -> Weights:
        """The rows that are trained in this task."""
        first = self.first_trained(state.task, state.known)
        return {name: state.weights[name][row:] for name, row in first.items()}

    def combine(self, state: ServerState, sent: list[tuple[Weights, int]]) -> Weights:
        """The global model with the average of the trained rows."""
        return with_rows(state.weights, average(sent, self.averaging))

    def scores(self, state: ServerState, X: NDArray[Any]) -> Tensor:
        """Scores (n, C) over all classes seen."""
        weights = self.deployed(state)
        return self.evaluate(X, lambda p: self.class_scores(weights, self.features(weights, p)))

    def deployed(self, state: ServerState) -> Weights:
        """The tensors of the network that predicts; by default the global model."""
        return state.weights

    def embed(self, state: ServerState, X: NDArray[Any]) -> NDArray[Any]:
        """The features that the head gets."""
        weights = self.deployed(state)
        found = self.evaluate(X, lambda part: self.features(weights, part))
        return np.asarray(found.cpu().numpy())

    def evaluate(self, X: NDArray[Any], f: Callable[[Embedded], Tensor]) -> Tensor:
        """f over all images, ``ROWS_PER_PASS`` at a time, without gradients."""
        with torch.inference_mode():
            starts = range(0, max(len(X), 1), ROWS_PER_PASS)
            return torch.cat([f(self.embedded(X[i : i + ROWS_PER_PASS])) for i in starts])


def add_rows(weights: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> Weights:
    """The weights, with new rows below those of the tensors of the same names, if there are any."""
    below = {n: torch.cat([weights[n], t]) if n in weights else t for n, t in new.items()}
    return {**weights, **below}
