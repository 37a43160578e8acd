"""FediCaRL: exemplars of old classes in every client's batches, and a distilling teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from numpy.typing import NDArray

from fedran.core.errors import Refused
from fedran.settings import at_least
from fedran_bench.methods.trained.fedavg import ServerState
from fedran_bench.methods.trained.lazy_torch import Tensor, torch
from fedran_bench.methods.trained.local_training import ClientRound, Memory
from fedran_bench.methods.trained.method import FedLwF
from fedran_bench.methods.trained.rows import Rows, as_tensor
from fedran_bench.methods.trained.weights import evaluate, teacher_network

if TYPE_CHECKING:
    from fedran_bench.methods.trained.networks import Network


@dataclass(frozen=True)
class FediCaRL(FedLwF):
    """Cross-entropy over all logits on new rows and exemplars, plus distillation.

    ``corrected``: every client keeps at most ``memory_size`` exemplars of its rows, the same
    number per class, chosen by herding under the final global model of each task. The class with
    the nearest mean of exemplars is predicted; clients send one sum per class for these means.
    ``as_published``: every client keeps all its old rows and draws ``memory_size`` of them in
    every round; the linear head predicts.
    """

    memory_size: Annotated[int, at_least(1)] = 2000
    """Exemplars per client."""
    strength: Annotated[float, at_least(0)] = 1.0
    """Weight of the distillation term."""
    flavour: Literal["corrected", "as_published"] = "corrected"
    """Which version of the method runs."""

    title = "FediCaRL"
    verified = "partly: herding, buffer, nearest mean and loss tested; accuracy was not checked"
    new_classes_only = False

    def training_rows(self, client: ClientRound) -> Rows:
        """The task's rows and the exemplars."""
        exemplars = read_exemplars(client)
        if exemplars is None:
            return client.rows
        if self.flavour == "as_published" and len(exemplars) > self.memory_size:
            drawn = torch.randperm(len(exemplars), generator=client.random)[: self.memory_size]
            exemplars = exemplars[drawn.to(exemplars.codes.device)]
        return client.rows + exemplars

    def close_task(self, client: ClientRound) -> Memory:
        """Update the exemplars; send the sum of their unit features per class."""
        old = read_exemplars(client)
        found = client.rows if old is None else old + client.rows
        if not len(found):
            return {}
        if self.flavour == "as_published":
            keep_exemplars(client, found)
            return {}
        network = teacher_network(self.network, client.weights, self.torch_device)
        n_old = 0 if old is None else len(old)
        exemplars = choose_exemplars(network, found, n_old, self.memory_size)
        keep_exemplars(client, exemplars)
        features = unit_features(network, exemplars.X)
        held, where = exemplars.codes.unique(return_inverse=True)
        sums = torch.zeros(len(held), features.shape[1], device=features.device)
        return {"held": held, "sums": sums.index_add(0, where, features)}

    def aggregate_closing(self, state: ServerState, sent: list[Memory]) -> ServerState:
        """The mean of the exemplars of all clients, one per class."""
        if self.flavour == "as_published":
            return state
        width = state.weights["head.weight"].shape[1]
        sums = torch.zeros(len(state.classes), width, device=self.torch_device)
        for part in [checked_sums(part, sums) for part in sent if part]:
            sums.index_add_(0, part["held"], part["sums"])
        state.extra["means"] = torch.nn.functional.normalize(sums, dim=1)
        return state

    def scores(self, state: ServerState, X: NDArray[Any]) -> Tensor:
        """Cosine to the class means; logits as published and before the first closing round."""
        means = state.extra.get("means")
        if means is None or len(means) != len(state.classes):
            return super().scores(state, X)
        rows = as_tensor(X, self.torch_device)
        scores = unit_features(self.global_network(state), rows) @ means.T
        return scores.masked_fill(~means.any(1), -torch.inf)


def read_exemplars(client: ClientRound) -> Rows | None:
    """The exemplars in a client's memory."""
    if "exemplars" not in client.memory:
        return None
    return Rows(client.memory["exemplars"], client.memory["exemplar_codes"])


def keep_exemplars(client: ClientRound, rows: Rows) -> None:
    """Replace the exemplars in a client's memory."""
    client.memory["exemplars"], client.memory["exemplar_codes"] = rows.X, rows.codes


def unit_features(network: Network, X: Tensor) -> Tensor:
    """The body's output, each row scaled to length 1."""
    return torch.nn.functional.normalize(evaluate(network.body, X), dim=1)


def choose_exemplars(network: Network, rows: Rows, n_old: int, size: int) -> Rows:
    """At most ``size`` rows, balanced over the classes.

    The first ``n_old`` rows are exemplars already: of their classes the first ones are kept.
    Other classes are herded.
    """
    classes, counts = (t.tolist() for t in rows.codes.unique(return_counts=True))
    chosen = []
    for c, quota in zip(classes, quotas(counts, size), strict=True):
        where = (rows.codes == c).nonzero().squeeze(1)
        if bool((where < n_old).any()):
            chosen.append(where[where < n_old][:quota])
        else:
            chosen.append(where[herd(unit_features(network, rows.X[where]), quota)])
    return rows[torch.cat(chosen)]


def herd(features: Tensor, count: int) -> Tensor:
    """Indices of ``count`` rows whose running mean follows the mean of all rows (n, d), in order.

    Greedy: the k-th row brings the mean of the first k closest to the mean of all rows. Each
    choice costs O(n d).
    """
    target = features.mean(0)
    total = torch.zeros_like(target)
    left = torch.ones(len(features), dtype=torch.bool, device=features.device)
    chosen = []
    for k in range(1, min(count, len(features)) + 1):
        distance = torch.linalg.vector_norm(target - (total + features) / k, dim=1)
        distance[~left] = torch.inf
        best = distance.argmin()
        left[best] = False
        total = total + features[best]
        chosen.append(best)
    return torch.stack(chosen) if chosen else torch.zeros(0, dtype=torch.long, device=left.device)


def quotas(rows: Sequence[int], size: int) -> list[int]:
    """Exemplars per class, given the rows per class: ``size`` in total, as equal as possible.

    Room that a small class cannot use goes to the others.

    >>> quotas([9, 9, 9], 8), quotas([1, 9, 9], 8)
    ([3, 3, 2], [1, 4, 3])
    """
    level = 0
    while level < max(rows, default=0) and sum(min(n, level + 1) for n in rows) <= size:
        level += 1
    given = [min(n, level) for n in rows]
    for i in [i for i, n in enumerate(rows) if n > level][: size - sum(given)]:
        given[i] += 1
    return given


def checked_sums(part: Memory, like: Tensor) -> Memory:
    """A client's class sums, refused unless finite, with one row for each class it names."""
    held, sums = part.get("held"), part.get("sums")
    if held is None or sums is None or held.dtype != torch.int64 or held.ndim != 1:
        raise Refused("closing", "class numbers and sums", sorted(part))
    if sums.dtype != torch.float32 or sums.shape != (len(held), like.shape[1]):
        expected = f"float32 {[len(held), like.shape[1]]}"
        raise Refused("sums", expected, f"{sums.dtype} {list(sums.shape)}")
    if len(held) and not 0 <= int(held.min()) <= int(held.max()) < len(like):
        raise Refused("held", f"class numbers below {len(like)}", held.tolist())
    if not bool(sums.isfinite().all()):
        raise Refused("sums", "finite values", "NaN or infinity")
    return part
