"""Federated averaging over rounds, with hooks for what differs between methods.

One round, in the order of the calls: ``broadcast`` sends the global model, ``client`` trains it on
one client's rows and sends what it trained, ``aggregate`` averages what arrived.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.labels import Label, canonical, label_array
from fedran.settings import at_least
from fedran.wire.validation import FILE_LIMITS, Header
from fedran_bench.methods.protocol import BaseMethod, Claims, ClientData, Spec, Uploads
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights
from fedran_bench.methods.trained.local_training import (
    ClientRound,
    Memory,
    seeded_random,
    stable_seed,
)
from fedran_bench.methods.trained.messages import (
    Message,
    add_prefix,
    pack_tensors,
    strip_prefix,
    unpack_tensors,
)
from fedran_bench.methods.trained.rows import Rows, client_rows
from fedran_bench.methods.trained.weights import Averaging, average, check_weights, grow_head


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


GLOBAL, LOCAL, CLOSING = "global-model", "local-model", "closing"
"""Kinds of messages: download, upload of a training round, upload of the closing round."""


@dataclass(frozen=True)
class FedAvg(BaseMethod, ABC):
    """Rounds of local training and averaging. A subclass says what is trained and how.

    In a round every client receives the global model, trains on its rows of the task and
    sends the tensors that it trained. A method with a closing round has one more round per task,
    in which every client receives the final model of the task and keeps what it needs of it.
    """

    n_rounds: Annotated[int, at_least(1)] = 100
    """Training rounds per task."""
    averaging: Averaging = "unweighted"
    """All clients count equally, or in proportion to their rows."""
    device: str | None = None

    title: ClassVar[str]
    family: ClassVar[Literal["trained"]] = "trained"
    claims: ClassVar[Claims] = Claims(order_free=True, one_round=False)
    new_classes_only: ClassVar[bool] = True
    """Whether clients train the logits of the task's own classes only, on rows of these."""
    has_closing_round: ClassVar[bool] = False
    keeps_teacher: ClassVar[bool] = False
    """Whether clients keep the final model of a task as the teacher of the next one."""

    @abstractmethod
    def init(self, spec: Spec, seed: int) -> ServerState:
        """The server's state before the first task: a model without classes."""

    @abstractmethod
    def train(self, client: ClientRound) -> tuple[Weights, int]:
        """Train on the rows of a client: the tensors to send, and the number of rows used."""

    @abstractmethod
    def scores(self, state: ServerState, X: NDArray[Any]) -> Tensor:
        """Scores (n, C) over all classes seen."""

    def local_rows(self, data: ClientData, classes: tuple[Label, ...]) -> Rows:
        """The labelled rows of a client, on the device."""
        return client_rows(data, classes, self.torch_device)

    def start_task(self, state: ServerState) -> ServerState:
        """The server's work before the first round of a task; called once or more per task.

        The result depends on the state alone. The head has its new rows already.
        """
        return state

    def expected_upload(self, state: ServerState) -> Weights:
        """Tensors with the names and shapes of those that ``train`` sends; by default all."""
        return state.weights

    def combine(self, state: ServerState, sent: list[tuple[Weights, int]]) -> Weights:
        """The next global model from the tensors and row counts of all clients that trained."""
        return average(sent, self.averaging)

    def finish_training(self, state: ServerState) -> ServerState:
        """The server's work after the last training round of a task."""
        return state

    def close_task(self, client: ClientRound) -> Memory:
        """In the closing round: update the client's memory and return the tensors to send."""
        return {}

    def aggregate_closing(self, state: ServerState, sent: list[Memory]) -> ServerState:
        """The server's work on the tensors that clients sent in the closing round."""
        return state

    def extra_download(self, state: ServerState, round_: int) -> Memory:
        """Tensors that clients download besides the model."""
        return {}

    @property
    def torch_device(self) -> str:
        """The device that torch computes on."""
        return self.device or "cpu"

    def params(self) -> dict[str, Any]:
        """The settings, without those that only say where and how torch computes."""
        return {name: value for name, value in super().params().items() if name != "execution"}

    def rounds(self, task: int) -> int:
        """Training rounds, plus the closing round."""
        return self.n_rounds + self.has_closing_round

    def broadcast(self, state: ServerState, task: int, round_: int) -> bytes:
        """The global model, with one row of the head per class up to this task."""
        state = self._open_task(state, task)
        fields = {
            "task": task,
            "round": round_,
            "known": state.known,
            "classes": list(state.classes),
        }
        extra = add_prefix("extra", self.extra_download(state, round_))
        return pack_tensors(GLOBAL, fields, add_prefix("model", state.weights) | extra)

    def client(
        self, cstate: Memory | None, message: bytes, data: ClientData, seed: int
    ) -> tuple[Memory, bytes]:
        """Train on the labelled rows and send what was trained; or close the task."""
        received = unpack_tensors(GLOBAL, message, self.torch_device)
        client = self._client_round(received, cstate or {}, data, seed)
        if client.round >= self.n_rounds:
            closing = self.close_task(client)
            if self.keeps_teacher:
                client.memory.update(add_prefix("teacher", client.weights))
            return client.memory, pack_tensors(CLOSING, {}, closing)
        if not len(client.rows):
            return client.memory, pack_tensors(LOCAL, {"rows": 0}, {})
        weights, n_rows = self.train(client)
        return client.memory, pack_tensors(LOCAL, {"rows": n_rows}, weights)

    def aggregate(
        self, state: ServerState, task: int, round_: int, uploads: Uploads
    ) -> ServerState:
        """Combine the models that arrived. Clients without rows do not count."""
        state = self._open_task(state, task)
        if round_ >= self.n_rounds:
            closing = [unpack_tensors(CLOSING, b, self.torch_device) for b in uploads.values()]
            return self.aggregate_closing(state, [message.tensors for message in closing])
        state = replace(state, round=round_)
        expected, sent = self.expected_upload(state), []
        for client, blob in uploads.items():
            message = unpack_tensors(LOCAL, blob, self.torch_device)
            n_rows = message.header.integer("rows")
            if n_rows:
                name = f"the model of {client}"
                sent.append((check_weights(message.tensors, expected, name), n_rows))
        if sent:
            state = replace(state, weights=self.combine(state, sent))
        return self.finish_training(state) if round_ == self.n_rounds - 1 else state

    def predict(self, state: ServerState, X: NDArray[Any]) -> NDArray[Any]:
        """The class with the best score for each row."""
        if not state.classes:
            raise ValueError("nothing to predict with: no task was aggregated yet")
        best = self.scores(state, X).argmax(1).cpu().numpy()
        return label_array(state.classes)[best]

    def _open_task(self, state: ServerState, task: int) -> ServerState:
        opened = state.open_task(task)
        return state if opened is state else self.start_task(opened)

    def _client_round(
        self, message: Message, memory: Memory, data: ClientData, seed: int
    ) -> ClientRound:
        task, round_ = message.header.integer("task"), message.header.integer("round")
        classes, known = _announced_classes(message.header)
        rows = self.local_rows(data, classes)
        if self.new_classes_only and len(rows) and int(rows.codes.min()) < known:
            raise Refused("labels", "classes of this task", "rows of an earlier one")
        return ClientRound(
            task,
            round_,
            known,
            classes,
            strip_prefix("model", message.tensors),
            strip_prefix("extra", message.tensors),
            rows,
            memory,
            seeded_random("client", seed, task, round_, data.client),
        )


def _announced_classes(header: Header) -> tuple[tuple[Label, ...], int]:
    """The classes of a broadcast, in the order of the head's rows, and how many are old."""
    try:
        classes = tuple(canonical(c) for c in header.items("classes", FILE_LIMITS.classes))
    except ValueError as reason:
        raise Refused("classes", "a list of labels", str(reason)) from None
    if len(set(classes)) != len(classes):
        raise Refused("classes", "each class once", classes)
    return classes, header.integer("known", high=len(classes))
