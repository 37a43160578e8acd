"""The federated trainer behind the method protocol: rounds, averaging, resuming."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.labels import Label, canonical, label_array
from fedran.methods.protocol import ClientData, Spec
from fedran.methods.trained.training import workbench
from fedran.methods.trained.training.lazy_torch import Weights
from fedran.methods.trained.training.local import fit, generator, stable_seed
from fedran.methods.trained.training.messages import (
    Message,
    below,
    pack_tensors,
    unpack_tensors,
    within,
)
from fedran.methods.trained.training.recipe import Recipe
from fedran.methods.trained.training.state import Memory, State, Work
from fedran.methods.trained.training.tensors import as_tensor, client_rows
from fedran.methods.trained.training.weights import average, check_weights, grown, weights_of
from fedran.wire.validation import FILE_LIMITS, Header

GLOBAL, LOCAL, CLOSING = "global-model", "local-model", "closing"
"""Kinds of messages: down in every round, up in a training round, up in a closing round."""


@dataclass(frozen=True)
class Trained(Recipe, ABC):
    """A recipe that runs: FedAvg over the rounds of every task."""

    def init(self, spec: Spec, seed: int) -> State:
        """First weights, no classes."""
        start = workbench.first_weights(
            self.network, spec.in_features, self.weights, stable_seed("weights", seed), self.where
        )
        return State(spec, seed, start)

    def opened(self, state: State, task: int) -> State:
        """The state with a head for the classes of ``task``; itself where it has one already."""
        if task <= state.task or task >= len(state.spec.task_classes):
            return state
        new = [c for c in state.spec.task_classes[task] if c not in state.classes]
        classes = (*state.classes, *new)
        seed = stable_seed("head", state.seed, task)
        weights = grown(state.weights, len(classes), seed)
        return replace(state, task=task, known=len(state.classes), classes=classes, weights=weights)

    def broadcast(self, state: State, task: int, round_: int) -> bytes:
        """The global model, its head as wide as the classes up to this task."""
        now = self.opened(state, task)
        fields = {
            "task": task,
            "round": round_,
            "known": now.known,
            "classes": list(now.classes),
        }
        tensors = below("model", now.weights) | below("extra", self.handed_out(now, round_))
        return pack_tensors(GLOBAL, fields, tensors)

    def client(
        self, cstate: Memory | None, message: bytes, data: ClientData, seed: int
    ) -> tuple[Memory, bytes]:
        """Train on the labelled rows and send the weights; or close the task."""
        work = self._work(unpack_tensors(GLOBAL, message, self.where), cstate or {}, data, seed)
        if work.round >= self.n_rounds:
            sent = self.close(work)
            if self.keeps_teacher:
                work.memory.update(below("teacher", work.weights))
            return work.memory, pack_tensors(CLOSING, {}, sent)
        if not len(work.rows):
            return work.memory, pack_tensors(LOCAL, {"rows": 0}, {})
        rows = self.rows(work)
        then = within("teacher", work.memory)
        work.teacher = workbench.teacher(self.network, then, self.where) if then else None
        work.network = workbench.student(self.network, work.weights, self.where)
        fit(
            work.network,
            rows,
            lambda X, codes: self.loss(work, X, codes),
            self.schedule,
            work.random,
            self.where,
            self.most_batches(work),
        )
        self.after_round(work)
        return work.memory, pack_tensors(LOCAL, {"rows": len(rows)}, weights_of(work.network))

    def _work(self, message: Message, memory: Memory, data: ClientData, seed: int) -> Work:
        header = message.header
        task, round_ = header.integer("task"), header.integer("round")
        classes, known = announced(header)
        rows = client_rows(data, classes, self.where)
        if self.logits == "new" and len(rows) and int(rows.codes.min()) < known:
            raise Refused("labels", "classes of this task", "rows of an earlier one")
        return Work(
            task,
            round_,
            known,
            classes,
            within("model", message.tensors),
            within("extra", message.tensors),
            rows,
            memory,
            generator("client", seed, task, round_, data.client),
        )

    def aggregate(self, state: State, task: int, round_: int, uploads: dict[str, bytes]) -> State:
        """Average the models that arrived; after the last one, what the method does then."""
        state = self.opened(state, task)
        if round_ >= self.n_rounds:
            closing = [unpack_tensors(CLOSING, b, self.where).tensors for b in uploads.values()]
            return self.take_closing(state, closing)
        found = [self._local_model(blob, state.weights, c) for c, blob in uploads.items()]
        trained = [(weights, rows) for weights, rows in found if rows]
        if trained:
            state = replace(state, weights=average(trained, self.averaging))
        return self.finish_task(state) if round_ == self.n_rounds - 1 else state

    def _local_model(self, blob: bytes, like: Weights, client: str) -> tuple[Weights, int]:
        message = unpack_tensors(LOCAL, blob, self.where)
        rows = message.header.integer("rows")
        if not rows:
            return {}, 0
        return check_weights(message.tensors, like, f"the model of {client}"), rows

    def predict(self, state: State, X: NDArray[Any]) -> NDArray[Any]:
        """The best-scoring class of each row."""
        if not state.classes:
            raise ValueError("nothing to predict with: no task was aggregated yet")
        rows = as_tensor(X, self.where)
        network = workbench.teacher(self.network, state.weights, self.where)
        best = self.scores(state, network, rows).argmax(1).cpu().numpy()
        return label_array(state.classes)[best]

    def embed(self, state: State, X: NDArray[Any]) -> NDArray[Any] | None:
        """What the body makes of images; None for a head, whose features are frozen."""
        if self.network == "head":
            return None
        network = workbench.teacher(self.network, state.weights, self.where)
        return workbench.in_batches(network.body, as_tensor(X, self.where)).cpu().numpy()

    def gram(self, state: State) -> tuple[Callable[[Any], Any], Any] | None:
        """No Gram to compare."""

    def dump(self, state: State) -> bytes:
        """Weights, classes and what the method keeps."""
        fields = {"task": state.task, "known": state.known, "classes": list(state.classes)}
        tensors = below("model", state.weights) | below("extra", state.extra)
        return pack_tensors("server", fields, tensors)

    def load(self, blob: bytes, spec: Spec, seed: int) -> State:
        """The state that ``dump`` wrote."""
        message = unpack_tensors("server", blob, self.where)
        fields = message.header.fields
        return State(
            spec,
            seed,
            within("model", message.tensors),
            tuple(fields["classes"]),
            fields["known"],
            fields["task"],
            within("extra", message.tensors),
        )

    def dump_client(self, cstate: Memory | None) -> bytes:
        """A client's memory."""
        return pack_tensors("client", {}, cstate or {})

    def load_client(self, blob: bytes) -> Memory:
        """The memory that ``dump_client`` wrote."""
        return dict(unpack_tensors("client", blob, self.where).tensors)


def announced(header: Header) -> tuple[tuple[Label, ...], int]:
    """The classes of a broadcast, in the order of the head's rows, and how many are old."""
    try:
        classes = tuple(canonical(c) for c in header.items("classes", FILE_LIMITS.classes))
    except ValueError as reason:
        raise Refused("classes", "a list of labels", str(reason)) from None
    if len(set(classes)) != len(classes):
        raise Refused("classes", "each class once", classes)
    return classes, header.integer("known", high=len(classes))
