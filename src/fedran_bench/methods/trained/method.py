"""The base class of the methods that train a network or a head as a whole; Finetune and FedLwF."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from numpy.typing import NDArray

from fedran.settings import Rule, at_least, positive
from fedran_bench.methods.protocol import Spec
from fedran_bench.methods.trained.fedavg import FedAvg, ServerState
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights, torch
from fedran_bench.methods.trained.local_training import (
    ClientRound,
    Memory,
    Schedule,
    cross_entropy,
    distillation,
    fit,
    stable_seed,
)
from fedran_bench.methods.trained.messages import strip_prefix
from fedran_bench.methods.trained.recorded import recorded_step, require_gpu
from fedran_bench.methods.trained.rows import Replay, Rows, as_tensor, network_input
from fedran_bench.methods.trained.weights import (
    COUNTERS,
    copy_weights,
    evaluate,
    initial_weights,
    student_network,
    teacher_network,
)

if TYPE_CHECKING:
    from fedran_bench.methods.trained.networks import Network

IMAGE_SIDE = Rule(lambda v: v >= 8 and v % 4 == 0, "a multiple of 4 and at least 8")


@dataclass(frozen=True)
class TrainedMethod(FedAvg, Schedule, ABC):
    """FedAvg. A subclass defines the loss, and where needed what happens between tasks.

    In a round every client loads the global model, trains on its rows of the task with a
    fresh optimiser, and sends all weights and BatchNorm statistics; the server averages both.
    """

    network: Literal["head", "small", "resnet18", "resnet18-7x7"] = "head"
    """``head`` trains a linear layer on frozen features, the others train on images."""
    image_size: Annotated[int | None, IMAGE_SIDE] = None
    """Images are resized to squares of this side, in pixels."""
    execution: Literal["eager", "recorded"] = "eager"
    """``recorded`` replays the steps as CUDA graphs, which is faster. Not in the results."""

    sends: ClassVar[str] = "all weights and BatchNorm statistics, float32, every round"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network == "head" and self.precision != "float32":
            raise ValueError(
                f"precision = {self.precision!r} is for networks, and network = 'head' trains in "
                "float32: leave precision out, or choose another network"
            )

    @property
    def name(self) -> str:
        """The title, where training starts, and the flavour if it is the published one."""
        start = "head" if self.network == "head" else "from scratch"
        published = getattr(self, "flavour", "") == "as_published"
        return f"{self.title} ({start}{', as published' if published else ''})"

    @property
    def input(self) -> Literal["features", "images"]:
        """Features for a head, images for a network."""
        return "features" if self.network == "head" else "images"

    def formula(self, in_features: int, n_classes: int) -> int | None:
        """One state_dict per round: 4 bytes per weight or statistic, 8 per BatchNorm counter."""
        from fedran_bench.methods.trained.networks import build

        with torch.device("meta"):
            network = build(self.network, in_features)
        state = network.state_dict()
        counters = [n for n in state if n.endswith(COUNTERS)]
        numbers = sum(t.numel() for n, t in state.items() if n not in counters)
        numbers += (network.out_features + 1) * n_classes
        return self.n_rounds * (4 * numbers + 8 * len(counters))

    @abstractmethod
    def loss(self, client: ClientRound, X: Tensor, codes: Tensor) -> Tensor:
        """The value to minimise on one batch of a client's rows."""

    def classification_loss(self, client: ClientRound, logits: Tensor, codes: Tensor) -> Tensor:
        """Cross-entropy over the classes of the task, or over all classes so far."""
        return cross_entropy(logits, codes, client.known if self.new_classes_only else 0)

    def training_rows(self, client: ClientRound) -> Rows:
        """The rows that a client trains on: those of the task, and replay where a method has it."""
        return client.rows

    def replay(self, client: ClientRound) -> Replay | None:
        """Images that accompany the batches. The loss finds them in ``client.replayed``."""
        return None

    def loss_memory(self, client: ClientRound) -> Memory:
        """The part of a client's memory that ``loss`` reads, besides the teacher."""
        return {}

    def batch_loss(
        self, client: ClientRound, X: Tensor, codes: Tensor, replayed: Tensor | None = None
    ) -> Tensor:
        """``loss`` on a batch with its replayed images."""
        client.replayed = replayed
        return self.loss(client, X, codes)

    def scores(self, state: ServerState, X: NDArray[Any]) -> Tensor:
        """Scores (n, C) over all classes seen."""
        return evaluate(self.global_network(state), as_tensor(X, self.torch_device))

    def global_network(self, state: ServerState) -> Network:
        """The global model, ready for evaluation."""
        return teacher_network(self.network, state.weights, self.torch_device)

    def require_possible(self, n_tasks: int) -> None:
        """ValueError where the settings do not suit the device. ``fedran bench run`` asks first."""
        require_gpu(self.execution, self.torch_device)

    def init(self, spec: Spec, seed: int) -> ServerState:
        """The initial weights, without classes."""
        self.require_possible(len(spec.task_classes))
        weights = initial_weights(
            self.network, spec.in_features, stable_seed("weights", seed), self.torch_device
        )
        return ServerState(spec, seed, weights)

    def train(self, client: ClientRound) -> tuple[Weights, int]:
        """Train the received model with a fresh optimiser; all its weights are sent."""
        rows = self.training_rows(client)
        teacher = strip_prefix("teacher", client.memory)
        if teacher:
            client.teacher = teacher_network(self.network, teacher, self.torch_device)
        client.network = student_network(self.network, client.weights, self.torch_device)
        step = None
        if self.execution != "eager" and len(rows) > 1:
            step = recorded_step(self, client, self.batch_loss, self.loss_memory(client))
        fit(
            client.network,
            rows,
            partial(self.batch_loss, client),
            self,
            client.random,
            self.torch_device,
            self.replay(client),
            step,
        )
        return copy_weights(client.network), len(rows)

    def embed(self, state: ServerState, X: NDArray[Any]) -> NDArray[Any] | None:
        """The body's output for images; None for a head, whose features are frozen."""
        if self.network == "head":
            return None
        network = self.global_network(state)
        return evaluate(network.body, as_tensor(X, self.torch_device)).cpu().numpy()


@dataclass(frozen=True)
class Finetune(TrainedMethod):
    """Cross-entropy over the logits of the task's own classes."""

    title = "Finetune"
    verified = "partly: loss and averaging tested, schedule as published; accuracy was not checked"

    def loss(self, client: ClientRound, X: Tensor, codes: Tensor) -> Tensor:
        """Cross-entropy over the logits of the new classes."""
        return self.classification_loss(client, client.student(network_input(X)), codes)


@dataclass(frozen=True)
class FedLwF(TrainedMethod):
    """New-class cross-entropy plus distillation of the old logits on the client's new rows."""

    strength: Annotated[float, at_least(0)] = 3.0
    """Weight of the distillation term."""
    temperature: Annotated[float, positive] = 2.0
    """Temperature of the distillation."""

    title = "FedLwF"
    verified = "partly: loss, frozen teacher and averaging tested; accuracy was not checked"
    has_closing_round = True
    keeps_teacher = True

    def loss(self, client: ClientRound, X: Tensor, codes: Tensor) -> Tensor:
        """``classification_loss`` + strength x distillation of the old logits on the same rows."""
        x = network_input(X)
        logits = client.student(x)
        value = self.classification_loss(client, logits, codes)
        if client.teacher is None:
            return value
        with torch.no_grad():
            soft = client.teacher(x)
        return value + self.strength * distillation(logits, soft, self.temperature)
