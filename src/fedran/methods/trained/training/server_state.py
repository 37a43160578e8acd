"""The server's state of a trained method between rounds, also as bytes for a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fedran.core.labels import Label
from fedran.methods.protocol import Spec
from fedran.methods.trained.training.lazy_torch import Weights
from fedran.methods.trained.training.local_training import Memory, stable_seed
from fedran.methods.trained.training.messages import (
    add_prefix,
    pack_tensors,
    strip_prefix,
    unpack_tensors,
)
from fedran.methods.trained.training.weights import grow_head

KIND = "server"


@dataclass
class ServerState:
    """The global model, the classes of its head, and what a method keeps besides."""

    spec: Spec
    seed: int
    weights: Weights
    """The global model."""
    classes: tuple[Label, ...] = ()
    """Of all tasks so far, in the order of the head's rows."""
    known: int = 0
    """Number of classes of earlier tasks, which are the head's first rows."""
    task: int = -1
    round: int = 0
    """The round that is being aggregated."""
    extra: Memory = field(default_factory=dict)
    """Other tensors that the method's server keeps."""

    def open_task(self, task: int) -> ServerState:
        """The state with a head for the classes of ``task``; unchanged if it has one already."""
        if task <= self.task or task >= len(self.spec.task_classes):
            return self
        new = [c for c in self.spec.task_classes[task] if c not in self.classes]
        classes = (*self.classes, *new)
        weights = grow_head(self.weights, len(classes), stable_seed("head", self.seed, task))
        return replace(self, task=task, known=len(self.classes), classes=classes, weights=weights)

    def to_bytes(self) -> bytes:
        """The state without ``spec`` and ``seed``, which a run knows anyway."""
        fields = {"task": self.task, "known": self.known, "classes": list(self.classes)}
        tensors = add_prefix("model", self.weights) | add_prefix("extra", self.extra)
        return pack_tensors(KIND, fields, tensors)

    @classmethod
    def from_bytes(cls, blob: bytes, spec: Spec, seed: int, device: str) -> ServerState:
        """Inverse of ``to_bytes``."""
        message = unpack_tensors(KIND, blob, device)
        fields = message.header.fields
        return cls(
            spec,
            seed,
            strip_prefix("model", message.tensors),
            tuple(fields["classes"]),
            fields["known"],
            fields["task"],
            extra=strip_prefix("extra", message.tensors),
        )
