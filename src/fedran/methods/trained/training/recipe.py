"""What a trained method is made of: its settings and the hooks that a method may change."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from fedran.methods.protocol import Claims
from fedran.methods.settings import check_settings
from fedran.methods.trained.training import workbench
from fedran.methods.trained.training.lazy_torch import Tensor, torch
from fedran.methods.trained.training.local import Schedule, stable_seed
from fedran.methods.trained.training.losses import distillation, new_class_loss
from fedran.methods.trained.training.state import Memory, State, Work
from fedran.methods.trained.training.tensors import Rows, inputs
from fedran.methods.trained.training.weights import COUNTERS, Averaging, file_hash

if TYPE_CHECKING:
    from fedran.methods.trained.training.networks import Network


@dataclass(frozen=True)
class Recipe(ABC):
    """FedAvg over rounds. A method says which loss is lowered and what happens between tasks.

    In a round every participant loads the global model, trains on its rows of the task with a
    fresh optimiser, and sends all weights and BatchNorm statistics; the server averages both.
    ``network = "head"`` trains a linear head on frozen features, the others train on images.
    A method that ``closes`` its tasks has one more round, in which every client gets the final
    model of the task and keeps what it needs of it.
    """

    network: Literal["head", "small", "resnet18", "resnet18-7x7"] = "head"
    n_rounds: int = 100
    epochs: int = 2
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch: int = 128
    averaging: Averaging = "unweighted"
    participation: float = 1.0
    logits: Literal["new", "all"] = "new"
    augment: bool = True
    image_size: int | None = None
    weights: str = ""
    device: str | None = None

    title: ClassVar[str]
    family: ClassVar[Literal["trained"]] = "trained"
    sends: ClassVar[str] = "all weights and BatchNorm statistics, float32, every round"
    claims: ClassVar[Claims] = Claims(order_free=True, one_round=False)
    closes: ClassVar[bool] = False
    keeps_teacher: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_settings(self.params())
        if self.weights and self.network == "head":
            raise ValueError(
                "weights start a network's body, and network = 'head' has none: leave weights "
                "out, or choose another network"
            )

    @property
    def name(self) -> str:
        """The title, where training starts, and the flavour if it is the published one."""
        start = "head" if self.network == "head" else "from scratch"
        start = "from weights" if self.weights else start
        published = getattr(self, "flavour", "") == "as_published"
        return f"{self.title} ({start}{', as published' if published else ''})"

    @property
    def input(self) -> Literal["features", "images"]:
        """Features for a head, images for a network."""
        return "features" if self.network == "head" else "images"

    @property
    def where(self) -> str:
        """The device that torch computes on."""
        return self.device or "cpu"

    @property
    def weights_hash(self) -> str | None:
        """Of the file that training starts from."""
        if not self.weights:
            return None
        return file_hash(self.weights)

    @property
    def schedule(self) -> Schedule:
        """How a client trains in one round."""
        return Schedule(
            self.epochs, self.batch, self.lr, self.momentum, self.weight_decay, self.augment
        )

    def params(self) -> dict[str, Any]:
        """The settings, but for where it runs."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "device"}

    def rounds(self, task: int) -> int:
        """Rounds of training, and the closing one."""
        return self.n_rounds + self.closes

    def participants(
        self, task: int, round_: int, clients: tuple[str, ...], seed: int
    ) -> tuple[str, ...]:
        """All, or a share drawn for this round; everyone takes part in a closing round."""
        if self.participation >= 1 or round_ >= self.n_rounds:
            return clients
        count = max(1, math.ceil(self.participation * len(clients) - 1e-9))  # 0.07 x 100 is 7
        rng = np.random.default_rng(stable_seed("participants", seed, task, round_))
        return tuple(clients[i] for i in sorted(rng.choice(len(clients), count, replace=False)))

    def formula(self, in_features: int, n_classes: int) -> int | None:
        """A state_dict a round: 4 bytes a weight or statistic, 8 a BatchNorm counter."""
        from fedran.methods.trained.training.networks import build

        with torch.device("meta"):
            network = build(self.network, in_features)
        state = network.state_dict()
        counters = [n for n in state if n.endswith(COUNTERS)]
        numbers = sum(t.numel() for n, t in state.items() if n not in counters)
        numbers += (network.out_features + 1) * n_classes
        return self.n_rounds * (4 * numbers + 8 * len(counters))

    @abstractmethod
    def loss(self, work: Work, X: Tensor, codes: Tensor) -> Tensor:
        """What a batch of a client's rows should lower."""

    def classification(self, work: Work, logits: Tensor, codes: Tensor) -> Tensor:
        """Cross-entropy over the logits of the task's own classes, or over all."""
        return new_class_loss(logits, codes, work.known if self.logits == "new" else 0)

    def taught(
        self, work: Work, X: Tensor, codes: Tensor, strength: float, temperature: float
    ) -> Tensor:
        """``classification`` + strength x distillation of the old logits, on the same rows."""
        x = inputs(X)
        logits = work.student(x)
        value = self.classification(work, logits, codes)
        if work.teacher is None:
            return value
        with torch.no_grad():
            soft = work.teacher(x)
        return value + strength * distillation(logits, soft, temperature)

    def rows(self, work: Work) -> Rows:
        """What a client trains on: its rows of the task, or those and some replay."""
        return work.rows

    def most_batches(self, work: Work) -> int | None:
        """A cap on the batches of an epoch."""
        return None

    def after_round(self, work: Work) -> None:  # noqa: B027 (a hook, empty unless it is needed)
        """A client's own bookkeeping after its training."""

    def close(self, work: Work) -> Memory:
        """What a client remembers of a finished task (in its memory) and sends (returned)."""
        return {}

    def finish_task(self, state: State) -> State:
        """The server's work after the last training round of a task."""
        return state

    def take_closing(self, state: State, sent: list[Memory]) -> State:
        """The server's work on what clients sent in the closing round."""
        return state

    def handed_out(self, state: State, round_: int) -> Memory:
        """What clients download besides the model."""
        return {}

    def scores(self, state: State, network: Network, X: Tensor) -> Tensor:
        """Scores (n, C) over all classes seen."""
        return workbench.in_batches(network, X)
