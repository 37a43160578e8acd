"""Training steps of a few tensors of a model, launched one by one or replayed as CUDA graphs.

A graph reads and writes fixed addresses: the model, the trained rows, the optimiser's state, the
learning rates and the batch are copied there. See ``trained.recorded``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from fedran_bench.methods.prompted.frozen_vit import Embedded
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights, torch
from fedran_bench.methods.trained.local_training import ClientRound
from fedran_bench.methods.trained.recorded import Replays, kept_step
from fedran_bench.methods.trained.rows import Rows

if TYPE_CHECKING:
    from fedran_bench.methods.prompted.base import PromptedMethod

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
        rates = {True: method.head_lr or method.lr, False: method.lr}
        self.rates = [rates[name.startswith("head.")] for name in start]
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
    """``Step`` on a GPU, recorded and replayed.

    ``restart`` begins the training of another client, or of the same in another round, whose model
    has the same shapes.
    """

    def __init__(self, method: PromptedMethod, client: ClientRound, start: Weights) -> None:
        weights = {name: t.clone() for name, t in client.weights.items()}
        super().__init__(method, replace(client, weights=weights, rows=client.rows[:0]), start)
        for leaf, group in zip(self.leaves, self.optimiser.param_groups, strict=True):
            group["lr"] = torch.tensor(group["lr"], device=leaf.device)  # read by every replay
            group["capturable"] = leaf.is_cuda
            leaf.grad = torch.zeros_like(leaf)
        self.optimiser._warned_capturable_if_run_uncaptured = True  # the next line is meant
        self.optimiser.step()  # creates the optimiser's state
        self.replays = Replays(
            self._compute, lambda: [*self.leaves, *self._state()], method.torch_device
        )

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
        X = rows.X
        self.replays({"tokens": X.tokens, "query": X.query, "codes": rows.codes, **X.extra})

    def _compute(self, batch: Mapping[str, Tensor]) -> None:
        extra = dict(batch)
        tokens, query, codes = (extra.pop(name) for name in ("tokens", "query", "codes"))
        super().__call__(Rows(Embedded(tokens, query, extra), codes))

    def _state(self) -> list[Tensor]:
        return [t for leaf in self.leaves for t in self.optimiser.state[leaf].values()]


def recorded_step(method: PromptedMethod, client: ClientRound, start: Weights) -> RecordedStep:
    """The step of a method for a client; recorded steps serve all clients and rounds of a task."""
    shapes = tuple(sorted((name, tuple(t.shape)) for name, t in client.weights.items()))
    key = (method, client.task, client.known, shapes, tuple(start))
    step = kept_step(key, MOST_STEPS, lambda: RecordedStep(method, client, start))
    step.restart(client, start)
    return step
