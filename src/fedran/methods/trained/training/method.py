"""The base class of all trained methods: FedAvg over rounds, with hooks for what differs.

One round, in the order of the calls: ``broadcast`` sends the global model, ``client`` trains it on
one client's rows and sends it back, ``aggregate`` averages what arrived.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.core.labels import Label, canonical, label_array
from fedran.methods.protocol import Claims, ClientData, Spec
from fedran.methods.trained.training.lazy_torch import Tensor, torch
from fedran.methods.trained.training.local_training import (
    ClientRound,
    Memory,
    Rows,
    Schedule,
    as_tensor,
    client_rows,
    cross_entropy,
    distillation,
    fit,
    network_input,
    seeded_random,
    stable_seed,
)
from fedran.methods.trained.training.messages import (
    Message,
    add_prefix,
    pack_tensors,
    strip_prefix,
    unpack_tensors,
)
from fedran.methods.trained.training.server_state import ServerState
from fedran.methods.trained.training.weights import (
    COUNTERS,
    NO_FILE,
    Averaging,
    average,
    check_weights,
    copy_weights,
    evaluate,
    initial_weights,
    student_network,
    teacher_network,
)
from fedran.settings import Rule, at_least, share
from fedran.wire.validation import FILE_LIMITS, Header

if TYPE_CHECKING:
    from fedran.methods.trained.training.networks import Network

GLOBAL, LOCAL, CLOSING = "global-model", "local-model", "closing"
"""Kinds of messages: download, upload of a training round, upload of the closing round."""
IMAGE_SIDE = Rule(lambda v: v >= 8 and v % 4 == 0, "a multiple of 4 and at least 8")


@dataclass(frozen=True)
class TrainedMethod(Schedule, ABC):
    """FedAvg. A subclass defines the loss, and where needed what happens between tasks.

    In a round every participant loads the global model, trains on its rows of the task with a
    fresh optimiser, and sends all weights and BatchNorm statistics; the server averages both.
    A method with a closing round has one more round per task, in which every client receives the
    final model of the task and keeps what it needs of it.
    """

    network: Literal["head", "small", "resnet18", "resnet18-7x7"] = "head"
    """``head`` trains a linear layer on frozen features, the others train on images."""
    n_rounds: Annotated[int, at_least(1)] = 100
    """Training rounds per task."""
    averaging: Averaging = "unweighted"
    """All clients count equally, or in proportion to their rows."""
    participation: Annotated[float, share] = 1.0
    """Share of the clients that is drawn for each round."""
    logits: Literal["new", "all"] = "new"
    """Cross-entropy over the classes of the task, or over all classes so far."""
    image_size: Annotated[int | None, IMAGE_SIDE] = None
    """Images are resized to squares of this side, in pixels."""
    weights: str = ""
    """A safetensors file with the initial weights of the body. Without it they are random."""
    device: str | None = None

    title: ClassVar[str]
    family: ClassVar[Literal["trained"]] = "trained"
    sends: ClassVar[str] = "all weights and BatchNorm statistics, float32, every round"
    claims: ClassVar[Claims] = Claims(order_free=True, one_round=False)
    has_closing_round: ClassVar[bool] = False
    keeps_teacher: ClassVar[bool] = False
    """Whether clients keep the final model of a task as the teacher of the next one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network == "head" and self.weights:
            raise ValueError(
                "weights start a network's body, and network = 'head' has none: leave weights "
                "out, or choose another network"
            )
        if self.network == "head" and self.precision != "float32":
            raise ValueError(
                f"precision = {self.precision!r} is for networks, and network = 'head' trains in "
                "float32: leave precision out, or choose another network"
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
    def torch_device(self) -> str:
        """The device that torch computes on."""
        return self.device or "cpu"

    @property
    def weights_hash(self) -> str | None:
        """SHA-256 of the file that training starts from."""
        if not self.weights:
            return None
        if not Path(self.weights).is_file():
            raise FileNotFoundError(f"{self.weights}: {NO_FILE}")
        return hashlib.sha256(Path(self.weights).read_bytes()).hexdigest()

    def params(self) -> dict[str, Any]:
        """The settings, without the device."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "device"}

    def rounds(self, task: int) -> int:
        """Training rounds, plus the closing round."""
        return self.n_rounds + self.has_closing_round

    def participants(
        self, task: int, round_: int, clients: tuple[str, ...], seed: int
    ) -> tuple[str, ...]:
        """All clients, or a share drawn for this round. Everyone takes part in a closing round."""
        if self.participation >= 1 or round_ >= self.n_rounds:
            return clients
        count = max(1, math.ceil(self.participation * len(clients) - 1e-9))  # 0.07 x 100 is 7
        rng = np.random.default_rng(stable_seed("participants", seed, task, round_))
        return tuple(clients[i] for i in sorted(rng.choice(len(clients), count, replace=False)))

    def formula(self, in_features: int, n_classes: int) -> int | None:
        """One state_dict per round: 4 bytes per weight or statistic, 8 per BatchNorm counter."""
        from fedran.methods.trained.training.networks import build

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
        """Cross-entropy over the classes of the task, or over all, as ``logits`` says."""
        return cross_entropy(logits, codes, client.known if self.logits == "new" else 0)

    def distilled_loss(
        self, client: ClientRound, X: Tensor, codes: Tensor, strength: float, temperature: float
    ) -> Tensor:
        """``classification_loss`` + strength x distillation of the old logits on the same rows."""
        x = network_input(X)
        logits = client.student(x)
        value = self.classification_loss(client, logits, codes)
        if client.teacher is None:
            return value
        with torch.no_grad():
            soft = client.teacher(x)
        return value + strength * distillation(logits, soft, temperature)

    def training_rows(self, client: ClientRound) -> Rows:
        """The rows that a client trains on: those of the task, and replay where a method has it."""
        return client.rows

    def max_batches(self, client: ClientRound) -> int | None:
        """A limit on the batches per epoch."""
        return None

    def after_training(self, client: ClientRound) -> None:
        """Update a client's memory after its training in a round."""

    def close_task(self, client: ClientRound) -> Memory:
        """In the closing round: update the client's memory and return the tensors to send."""
        return {}

    def finish_training(self, state: ServerState) -> ServerState:
        """The server's work after the last training round of a task."""
        return state

    def aggregate_closing(self, state: ServerState, sent: list[Memory]) -> ServerState:
        """The server's work on the tensors that clients sent in the closing round."""
        return state

    def extra_download(self, state: ServerState, round_: int) -> Memory:
        """Tensors that clients download besides the model."""
        return {}

    def scores(self, state: ServerState, network: Network, X: Tensor) -> Tensor:
        """Scores (n, C) over all classes seen."""
        return evaluate(network, X)

    def replay_rows(self, n_rows: int, n_clients: int) -> int:
        """Old rows that all clients keep together, at most, for the estimate of memory."""
        return 0

    def synthetic_rows(self) -> int:
        """Synthetic images that the server makes per task, for the estimate of memory."""
        return 0

    def init(self, spec: Spec, seed: int) -> ServerState:
        """The initial weights, without classes."""
        seed_of_weights = stable_seed("weights", seed)
        weights = initial_weights(
            self.network, spec.in_features, self.weights, seed_of_weights, self.torch_device
        )
        return ServerState(spec, seed, weights)

    def broadcast(self, state: ServerState, task: int, round_: int) -> bytes:
        """The global model, with one row of the head per class up to this task."""
        state = state.open_task(task)
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
        """Train on the labelled rows and send the weights; or close the task."""
        received = unpack_tensors(GLOBAL, message, self.torch_device)
        client = self._client_round(received, cstate or {}, data, seed)
        if client.round >= self.n_rounds:
            sent = self.close_task(client)
            if self.keeps_teacher:
                client.memory.update(add_prefix("teacher", client.weights))
            return client.memory, pack_tensors(CLOSING, {}, sent)
        if not len(client.rows):
            return client.memory, pack_tensors(LOCAL, {"rows": 0}, {})
        rows = self.training_rows(client)
        teacher = strip_prefix("teacher", client.memory)
        if teacher:
            client.teacher = teacher_network(self.network, teacher, self.torch_device)
        client.network = student_network(self.network, client.weights, self.torch_device)
        fit(
            client.network,
            rows,
            lambda X, codes: self.loss(client, X, codes),
            self,
            client.random,
            self.torch_device,
            self.max_batches(client),
        )
        self.after_training(client)
        weights = copy_weights(client.network)
        return client.memory, pack_tensors(LOCAL, {"rows": len(rows)}, weights)

    def _client_round(
        self, message: Message, memory: Memory, data: ClientData, seed: int
    ) -> ClientRound:
        task, round_ = message.header.integer("task"), message.header.integer("round")
        classes, known = _announced_classes(message.header)
        rows = client_rows(data, classes, self.torch_device)
        if self.logits == "new" and len(rows) and int(rows.codes.min()) < known:
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

    def aggregate(
        self, state: ServerState, task: int, round_: int, uploads: dict[str, bytes]
    ) -> ServerState:
        """Average the models that arrived. Clients without rows do not count."""
        state = state.open_task(task)
        if round_ >= self.n_rounds:
            closing = [unpack_tensors(CLOSING, b, self.torch_device) for b in uploads.values()]
            return self.aggregate_closing(state, [message.tensors for message in closing])
        trained = []
        for client, blob in uploads.items():
            message = unpack_tensors(LOCAL, blob, self.torch_device)
            n_rows = message.header.integer("rows")
            if n_rows:
                name = f"the model of {client}"
                trained.append((check_weights(message.tensors, state.weights, name), n_rows))
        if trained:
            state = replace(state, weights=average(trained, self.averaging))
        return self.finish_training(state) if round_ == self.n_rounds - 1 else state

    def predict(self, state: ServerState, X: NDArray[Any]) -> NDArray[Any]:
        """The class with the best score for each row."""
        if not state.classes:
            raise ValueError("nothing to predict with: no task was aggregated yet")
        rows = as_tensor(X, self.torch_device)
        network = teacher_network(self.network, state.weights, self.torch_device)
        best = self.scores(state, network, rows).argmax(1).cpu().numpy()
        return label_array(state.classes)[best]

    def embed(self, state: ServerState, X: NDArray[Any]) -> NDArray[Any] | None:
        """The body's output for images; None for a head, whose features are frozen."""
        if self.network == "head":
            return None
        network = teacher_network(self.network, state.weights, self.torch_device)
        return evaluate(network.body, as_tensor(X, self.torch_device)).cpu().numpy()

    def gram(self, state: ServerState) -> tuple[Callable[[Any], Any], Any] | None:
        """None: there is no Gram to compare."""

    def dump(self, state: ServerState) -> bytes:
        """The server's state as bytes."""
        return state.to_bytes()

    def load(self, blob: bytes, spec: Spec, seed: int) -> ServerState:
        """The state that ``dump`` wrote."""
        return ServerState.from_bytes(blob, spec, seed, self.torch_device)

    def dump_client(self, cstate: Memory | None) -> bytes:
        """A client's memory as bytes."""
        return pack_tensors("client", {}, cstate or {})

    def load_client(self, blob: bytes) -> Memory:
        """The memory that ``dump_client`` wrote."""
        return dict(unpack_tensors("client", blob, self.torch_device).tensors)


def _announced_classes(header: Header) -> tuple[tuple[Label, ...], int]:
    """The classes of a broadcast, in the order of the head's rows, and how many are old."""
    try:
        classes = tuple(canonical(c) for c in header.items("classes", FILE_LIMITS.classes))
    except ValueError as reason:
        raise Refused("classes", "a list of labels", str(reason)) from None
    if len(set(classes)) != len(classes):
        raise Refused("classes", "each class once", classes)
    return classes, header.integer("known", high=len(classes))
