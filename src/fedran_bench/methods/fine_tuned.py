"""An analytic method on a network that the clients fine-tune in task 0, and then freeze.

A configuration asks for it with a table ``task0`` of any analytic method:

    [[method]]
    key = "fedran"
    rank = 128

    [method.task0]
    weights = "weights/vit_tiny_patch16_224.safetensors"

Task 0 has the rounds of the fine-tuning and then those of the analytic method. Before the first of
these every client receives the final adapters. All messages travel through the protocol, so their
bytes and seconds count for the method.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedran.wire.container import pack, unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.base import AnalyticMethod
from fedran_bench.methods.prompted.adapters import AdapterTuning
from fedran_bench.methods.protocol import BaseMethod, Claims, ClientData, Spec, Uploads
from fedran_bench.methods.trained.rows import once_per_task
from fedran_bench.methods.yardsticks import SendImages

TUNING = "task0-tuning"
FROZEN = "task0-frozen"
"""Kinds of downloads in task 0: one round of the fine-tuning, and the final adapters."""
BLOCK_ROWS = 500
_kept: dict[tuple[Any, ...], NDArray[np.float32]] = {}
"""Features of blocks of predicted rows: the test rows of a run grow from task to task."""


@dataclass(frozen=True)
class ServerState:
    """The fine-tuning until the adapters are final, then the state of the analytic method."""

    spec: Spec
    seed: int
    tuning: Any = None
    adapters: bytes = b""
    """The final adapters as they travel; empty before."""
    inner: Any = None

    @property
    def head(self) -> Any:
        """The newest head of the analytic method."""
        return getattr(self.inner, "head", None)


@dataclass(frozen=True)
class ClientState:
    """What a client keeps: of the fine-tuning, then the final adapters."""

    tuning: Any = None
    adapters: bytes = b""
    inner: Any = None

    @property
    def pseudo(self) -> Any:
        """What the analytic method's rule for missing labels did in the last task."""
        return getattr(self.inner, "pseudo", None)


@dataclass(frozen=True)
class FineTuned(BaseMethod):
    """``stage`` trains adapters in task 0. ``inner`` then runs on features of the frozen result."""

    inner: Any
    stage: AdapterTuning

    input: ClassVar[Literal["images"]] = "images"

    def __post_init__(self) -> None:
        if not isinstance(self.inner, AnalyticMethod) or isinstance(self.inner, SendImages):
            raise ValueError(
                f"task0 is for methods on frozen features, and {self.inner.name} is none: leave "
                "task0 out"
            )
        if getattr(self.inner, "kind", "") is None:  # features of a ViT have both signs
            chosen = replace(self.inner, kind="cosine")  # type: ignore[type-var]
            object.__setattr__(self, "inner", chosen)

    def require_possible(self, n_tasks: int) -> None:
        """ValueError where the settings of the fine-tuning do not suit the device."""
        self.stage.require_possible(n_tasks)

    @property
    def name(self) -> str:
        """The name of the analytic method, and that its network was fine-tuned."""
        return f"{self.inner.name} (fine-tuned in task 0)"

    @property
    def family(self) -> Literal["analytic", "trained", "reference"]:
        """That of the analytic method."""
        return self.inner.family

    @property
    def claims(self) -> Claims:
        """FedAvg depends on the partition."""
        return Claims(order_free=self.inner.claims.order_free, one_round=False)

    @property
    def sends(self) -> str:
        """What travels in task 0 and afterwards."""
        return f"in task 0 {self.stage.sends}; {self.inner.sends}"

    @property
    def verified(self) -> str:
        """That of the analytic method, and of the fine-tuning."""
        return f"{self.inner.verified}; {self.stage.verified}"

    @property
    def device(self) -> str | None:  # type: ignore[override]
        """The device of both parts."""
        return self.stage.device

    @property
    def image_size(self) -> int | None:
        """Height and width to which images are resized when they are read."""
        return self.stage.image_size

    @property
    def weights_hash(self) -> str:
        """SHA-256 of the weights that the fine-tuning starts from."""
        return self.stage.weights_hash

    def formula(self, in_features: int, n_classes: int) -> int | None:
        """The bytes of the analytic method alone."""
        return self.inner.formula(self.stage.width, n_classes)

    def params(self) -> dict[str, Any]:
        """The settings of the analytic method, and those of the stage as ``task0``."""
        return {**self.inner.params(), "task0": self.stage.params()}

    def rounds(self, task: int) -> int:
        """Those of the analytic method, after the fine-tuning in task 0."""
        return self.inner.rounds(task) + (self.stage.n_rounds if task == 0 else 0)

    def init(self, spec: Spec, seed: int) -> ServerState:
        """The start of the fine-tuning."""
        return ServerState(spec, seed, self.stage.init(spec, seed))

    def broadcast(self, state: ServerState, task: int, round_: int) -> bytes:
        """In task 0 the model in training, then the final adapters; what ``inner`` broadcasts."""
        if self._tunes(task, round_):
            return pack(TUNING, {}, {"message": self.stage.broadcast(state.tuning, task, round_)})
        inner_round = self._inner_round(task, round_)
        message = self._on(state.adapters).broadcast(state.inner, task, inner_round)
        if task or inner_round:
            return message
        offer = {"message": message} if message else {}
        return pack(FROZEN, {}, {"adapters": state.adapters, **offer})

    def client(
        self, cstate: ClientState | None, message: bytes, data: ClientData, seed: int
    ) -> tuple[ClientState, bytes]:
        """One round of the fine-tuning, or extraction with the final adapters and ``inner``."""
        cstate = cstate or ClientState()
        if not cstate.adapters:
            received = unpack(message, FILE_LIMITS)
            if received.kind == TUNING:
                start = cstate.tuning
                tuning, upload = self.stage.client(start, received.stream("message"), data, seed)
                return replace(cstate, tuning=tuning), upload
            adapters = received.of_kind(FROZEN).stream("adapters")
            message = received.stream("message") if "message" in received.tensors else b""
            cstate = ClientState(adapters=adapters)
        method = self._on(cstate.adapters)
        features = once_per_task(
            data,
            f"{self.stage} {method.source['adapters']}",
            lambda: self.stage.adapted_features(cstate.adapters, data.X),
        )
        rows = replace(data, X=features, images=None)
        inner, upload = method.client(cstate.inner, message, rows, seed)
        return replace(cstate, inner=inner), upload

    def aggregate(
        self, state: ServerState, task: int, round_: int, uploads: Uploads
    ) -> ServerState:
        """A round of the fine-tuning, after the last of which ``inner`` starts; or of ``inner``."""
        if not self._tunes(task, round_):
            inner_round = self._inner_round(task, round_)
            inner = self._on(state.adapters).aggregate(state.inner, task, inner_round, uploads)
            return replace(state, inner=inner)
        tuning = self.stage.aggregate(state.tuning, task, round_, uploads)
        if round_ < self.stage.n_rounds - 1:
            return replace(state, tuning=tuning)
        adapters = self.stage.final_adapters(tuning)
        seen = replace(state.spec, in_features=self.stage.width, extract=None, image_size=None)
        inner = self._on(adapters).init(seen, state.seed)
        return ServerState(state.spec, state.seed, None, adapters, inner)

    def predict(self, state: ServerState, X: NDArray[Any]) -> NDArray[Any]:
        """Labels for the features of images."""
        if state.inner is None:
            raise ValueError("nothing to predict with: no task was aggregated yet")
        return self._on(state.adapters).predict(state.inner, self._features(state.adapters, X))

    def _features(self, adapters: bytes, X: NDArray[Any]) -> NDArray[np.float32]:
        """Features of images; those of blocks that were asked for before are reused."""
        found = []
        if _kept and next(iter(_kept))[:2] != (adapters, self.stage):
            _kept.clear()
        for i in range(0, max(len(X), 1), BLOCK_ROWS):
            block = X[i : i + BLOCK_ROWS]
            key = adapters, self.stage, block.shape, hashlib.sha256(block.tobytes()).digest()
            if key not in _kept:
                _kept[key] = self.stage.adapted_features(adapters, block)
            found.append(_kept[key])
        return np.concatenate(found)

    def _tunes(self, task: int, round_: int) -> bool:
        return task == 0 and round_ < self.stage.n_rounds

    def _inner_round(self, task: int, round_: int) -> int:
        return round_ - self.stage.n_rounds if task == 0 else round_

    def _on(self, adapters: bytes) -> Any:
        """``inner`` for the features of these adapters, whose digest is in their fingerprint."""
        digest = hashlib.sha256(adapters).hexdigest()
        return self.inner.bound_to({**self.stage.source, "adapters": digest})
