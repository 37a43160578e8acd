"""Training steps of a few tensors of a model, launched one by one or replayed as CUDA graphs.

A step of a small ViT has several hundred kernels, which a GPU computes faster than the host can
launch them. A graph launches all of them at once. It reads and writes fixed addresses: the model,
the trained rows, the optimiser's state, the learning rates and the batch are copied there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedran.methods.prompted.frozen_vit import Embedded
from fedran.methods.trained.training.lazy_torch import Tensor, Weights, torch
from fedran.methods.trained.training.local_training import ClientRound, Rows
from fedran.methods.trained.training.recorded import record_graph

if TYPE_CHECKING:
    from fedran.methods.prompted.base import PromptedMethod

Record = Callable[[Callable[[], None], Any], Callable[[], None]]
"""(step, memory pool) -> a function that does the step again, see ``record_graph``."""
MOST_STEPS = 2
"""Recorded steps that are kept: they hold memory on the GPU."""


def with_rows(weights: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> Weights:
    """The weights, with the last rows of some tensors replaced by new ones."""
    whole = dict(weights)
    for name, rows in new.items():
        kept = len(weights[name]) - len(rows)
        whole[name] = torch.cat([weights[name][:kept], rows]) if kept else rows
    return whole


class Step:
    """Forward, backward and update on one batch of rows, with a fresh optimiser.

    ``start`` has the last rows of some tensors of the client's model. They are trained in
    ``trained``, a copy.
    """

    def __init__(self, method: PromptedMethod, client: ClientRound, start: Weights) -> None:
        self.method, self.client = method, client
        self.trained = {name: t.detach().clone().requires_grad_() for name, t in start.items()}
        self.rates = [method.rate_of(name) for name in start]
        groups = [{"params": [t], "lr": r} for t, r in zip(self.leaves, self.rates, strict=True)]
        self.optimiser = method.optimiser(groups)

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors in training."""
        return list(self.trained.values())

    def set_rates(self, share: float) -> None:
        """Learning rates for the next steps, as a share of the method's."""
        for rate, group in zip(self.rates, self.optimiser.param_groups, strict=True):
            group["lr"] = rate * share

    def __call__(self, rows: Rows) -> None:
        """One step on this batch."""
        self.optimiser.zero_grad(set_to_none=True)
        weights = with_rows(self.client.weights, self.trained)
        self.method.loss(self.client, weights, rows.X, rows.codes).backward()
        self.optimiser.step()


class RecordedStep(Step):
    """``Step`` on a GPU: recorded once per batch size, then replayed. Same kernels, same numbers.

    ``restart`` begins the training of another client, or of the same in another round, whose model
    has the same shapes. ``record`` makes a replay of a function, see ``record_graph``.
    """

    def __init__(
        self,
        method: PromptedMethod,
        client: ClientRound,
        start: Weights,
        record: Record = record_graph,
    ) -> None:
        weights = {name: t.clone() for name, t in client.weights.items()}
        super().__init__(method, replace(client, weights=weights, rows=client.rows[:0]), start)
        self.record = record
        self.pool = torch.cuda.graph_pool_handle() if record is record_graph else None
        self.replays: dict[tuple[Any, ...], tuple[Callable[[], None], Rows]] = {}
        for leaf, group in zip(self.leaves, self.optimiser.param_groups, strict=True):
            group["lr"] = torch.tensor(group["lr"], device=leaf.device)  # read by every replay
            group["capturable"] = leaf.is_cuda
            leaf.grad = torch.zeros_like(leaf)
        self.optimiser._warned_capturable_if_run_uncaptured = True  # the next line is meant
        self.optimiser.step()  # creates the optimiser's state

    def restart(self, client: ClientRound, start: Weights) -> None:
        """Copy the model and the start of the trained rows; forget the optimiser's state."""
        with torch.no_grad():
            for name, tensor in client.weights.items():
                self.client.weights[name].copy_(tensor)
            for name, tensor in start.items():
                self.trained[name].copy_(tensor)
            for tensor in self._state():
                tensor.zero_()

    def set_rates(self, share: float) -> None:
        """Learning rates for the next steps, as a share of the method's."""
        for rate, group in zip(self.rates, self.optimiser.param_groups, strict=True):
            group["lr"].fill_(rate * share)

    def __call__(self, rows: Rows) -> None:
        """One step on this batch."""
        sizes = (len(rows), *sorted(rows.X.extra))
        if sizes not in self.replays:
            extra = {name: t.clone() for name, t in rows.X.extra.items()}
            X = Embedded(rows.X.tokens.clone(), rows.X.query.clone(), extra)
            fixed = Rows(X, rows.codes.clone())
            with self._unchanged():
                replay = self.record(lambda: Step.__call__(self, fixed), self.pool)
            self.replays[sizes] = replay, fixed
        replay, fixed = self.replays[sizes]
        for place, tensor in zip(_tensors(fixed), _tensors(rows), strict=True):
            place.copy_(tensor)
        replay()

    def _state(self) -> list[Tensor]:
        return [t for leaf in self.leaves for t in self.optimiser.state[leaf].values()]

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Trained rows, optimiser and random numbers are afterwards what they were before."""
        tensors = [*self.leaves, *self._state()]
        before = [t.detach().clone() for t in tensors]
        with torch.random.fork_rng([t.device for t in tensors[:1] if t.is_cuda]):
            yield
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)


def _tensors(rows: Rows) -> list[Tensor]:
    extra = rows.X.extra
    return [rows.X.tokens, rows.X.query, rows.codes, *(extra[name] for name in sorted(extra))]


_kept: dict[Any, RecordedStep] = {}


def recorded_step(
    method: PromptedMethod, client: ClientRound, start: Weights, record: Record = record_graph
) -> RecordedStep:
    """The step of a method for a client; recorded steps serve all clients and rounds of a task."""
    shapes = tuple(sorted((name, tuple(t.shape)) for name, t in client.weights.items()))
    key = (method, client.task, client.known, shapes, tuple(start))
    if key not in _kept:
        while len(_kept) >= MOST_STEPS:
            del _kept[next(iter(_kept))]
        _kept[key] = RecordedStep(method, client, start, record)
    step = _kept[key]
    step.restart(client, start)
    return step
