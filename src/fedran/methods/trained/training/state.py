"""What the server and a client hold while they train."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from fedran.core.labels import Label
from fedran.methods.protocol import Spec
from fedran.methods.trained.training.lazy_torch import Tensor, Weights
from fedran.methods.trained.training.tensors import Rows

if TYPE_CHECKING:
    from fedran.methods.trained.training.networks import Network

Memory: TypeAlias = dict[str, Tensor]
"""What a client keeps between rounds, by name; ``teacher/...`` is the last task's model."""


@dataclass
class State:
    """The server's: the global model, its classes in the order of the head's rows, the task."""

    spec: Spec
    seed: int
    weights: Weights
    classes: tuple[Label, ...] = ()
    known: int = 0
    """Classes of earlier tasks: the head's first rows."""
    task: int = -1
    extra: Memory = field(default_factory=dict)
    """What a method's server keeps besides."""


@dataclass
class Work:
    """One client's round: what came, what it has, what it trains."""

    task: int
    round: int
    known: int
    classes: tuple[Label, ...]
    weights: Weights
    extra: Memory
    rows: Rows
    memory: Memory
    random: Any
    network: Network | None = None
    teacher: Network | None = None

    @property
    def student(self) -> Network:
        """The network in training."""
        assert self.network is not None
        return self.network
