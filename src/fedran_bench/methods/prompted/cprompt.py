"""Fed-CPrompt: CODA-Prompt with a contrastive loss on the features.

Bagwe et al., "Fed-CPrompt: Contrastive Prompt for Rehearsal-Free Federated Continual Learning",
2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fedran.settings import at_least
from fedran_bench.methods.prompted.codaprompt import POOL, FedCODAPrompt
from fedran_bench.methods.prompted.frozen_vit import ROWS_PER_PASS, Embedded
from fedran_bench.methods.protocol import Claims
from fedran_bench.methods.trained.fedavg import ServerState
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights, torch
from fedran_bench.methods.trained.local_training import ClientRound, cross_entropy, seeded_random
from fedran_bench.methods.trained.rows import Rows

PUBLISHED_NEAR, PUBLISHED_FAR = 1e3, 1e1
"""Weights of the two squared distances in the published loss."""


@dataclass(frozen=True)
class FedCPrompt(FedCODAPrompt):
    """Features of a client stay near the global model's and leave those of the last task's model.

    a are the features of a row in training, p those under the global model of the round, n those
    under the final model of the last task. Its components are frozen and part of the download, so
    nothing else is sent. Attention vectors pass through a softmax over their entries, as in the
    published code.

    ``corrected``: cross-entropy + contrast x mean over rows of
    max(0, d(a, p) - repulsion x d(a, n) + margin), where d is the squared distance divided by the
    width. Clients are averaged by their rows. ``as_published``: the published code with the one
    repair without which it does not run (the model returns four values, three are taken). Its loss
    adds max(0, sum over the batch of (1000 d2(a, p) - 10 d2(a, n)) + 1), with d2 the squared
    distance, and outweighs the cross-entropy by orders of magnitude. Its average takes the row
    counts of the clients in random order, so that a client gets the weight of another one.
    """

    contrast: Annotated[float, at_least(0)] = 0.1
    """Weight of the contrastive loss."""
    repulsion: Annotated[float, at_least(0)] = 0.01
    """Weight of the distance from the last task's model within that loss."""
    margin: Annotated[float, at_least(0)] = 1.0
    """Margin of the contrastive loss."""
    flavour: Literal["corrected", "as_published"] = "corrected"
    """Which version of the method runs."""

    title = "Fed-CPrompt"
    verified = "partly: losses, prompts and averaging tested; the published code does not run"

    @property
    def claims(self) -> Claims:  # type: ignore[override]
        """As published, the order of the clients decides which row count a model gets."""
        return Claims(order_free=self.flavour == "corrected", one_round=False)

    def prefixes(self, weights: Weights, query: Tensor) -> dict[int, Tensor]:
        """As CODA-Prompt, with a softmax over the entries of each attention vector."""
        soft = torch.softmax(weights["attention"], dim=-1)
        return super().prefixes({**weights, "attention": soft}, query)

    def training_rows(self, client: ClientRound) -> Rows:
        """The client's rows with their features under the global and the last task's model."""
        X, extra = client.rows.X, {}
        with torch.no_grad():
            extra["near"] = self._features_of(client.weights, X)
            if client.task:
                old = {name: client.weights[name][: client.task * self.components] for name in POOL}
                extra["far"] = self._features_of(old, X)
        return replace(client.rows, X=replace(X, extra=extra))

    def _features_of(self, weights: Weights, X: Embedded) -> Tensor:
        starts = range(0, len(X), ROWS_PER_PASS)
        return torch.cat([self.features(weights, X[i : i + ROWS_PER_PASS]) for i in starts])

    def loss(self, client: ClientRound, weights: Weights, X: Embedded, codes: Tensor) -> Tensor:
        """Cross-entropy over the new classes + the contrastive loss of the flavour."""
        features = self.features(weights, X, client.task)
        value = cross_entropy(self.class_scores(weights, features), codes, client.known)
        near = ((features - X.extra["near"]) ** 2).sum(1)
        far = ((features - X.extra["far"]) ** 2).sum(1) if client.task else None
        if self.flavour == "as_published":
            return value + published_contrast(near, far)
        width = features.shape[1]
        term = near / width
        if far is not None:
            term = torch.relu(term - self.repulsion * far / width + self.margin)
        return value + self.contrast * term.mean()

    def combine(self, state: ServerState, sent: list[tuple[Weights, int]]) -> Weights:
        """The average by rows; as published, with the row counts in random order."""
        if self.flavour == "as_published":
            random = seeded_random("row counts", state.seed, state.task, state.round)
            order = torch.randperm(len(sent), generator=random).tolist()
            sent = [(weights, sent[i][1]) for (weights, _), i in zip(sent, order, strict=True)]
        return super().combine(state, sent)


def published_contrast(near: Tensor, far: Tensor | None) -> Tensor:
    """max(0, sum(1000 near - 10 far) + 1); in the first task 1000 sum(near)."""
    if far is None:
        return PUBLISHED_NEAR * near.sum()
    return torch.relu((PUBLISHED_NEAR * near - PUBLISHED_FAR * far).sum() + 1)
