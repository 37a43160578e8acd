"""Fed-DualPrompt: a prompt for all tasks, and one prompt per task that is chosen by its key.

Wang et al., "DualPrompt: Complementary Prompting for Rehearsal-free Continual Learning", 2022,
with the prompts, keys and head averaged over clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fedran.settings import at_least, positive
from fedran_bench.methods.prompted.base import PromptedMethod, add_rows
from fedran_bench.methods.prompted.frozen_vit import Embedded
from fedran_bench.methods.trained.fedavg import ServerState
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights, torch
from fedran_bench.methods.trained.local_training import ClientRound, seeded_random


@dataclass(frozen=True)
class FedDualPrompt(PromptedMethod):
    """General prompts in the first blocks, task prompts in the blocks after them.

    Prompts are keys and values that every token attends to (prefix tuning). In training the prompt
    of the task is used. In inference each image gets the prompt whose key has the largest cosine
    to its query, the frozen class token. The published majority vote over a test batch is left
    out: a prediction would depend on the other images of its batch.

    ``corrected``: one key per task for all blocks, drawn towards the queries by the loss, as in the
    paper. ``as_published``: the published federated code. Every block has its own key, and the loss
    of the keys is never added to the total, so that keys are not trained and the choice of the
    prompt is random.
    """

    general_length: Annotated[int, at_least(1)] = 5
    """Keys, and values, of the general prompt in each block."""
    general_blocks: Annotated[int, at_least(0)] = 2
    """Number of first blocks that have the general prompt."""
    task_length: Annotated[int, at_least(1)] = 5
    """Keys, and values, of a task's prompt in each block. The paper uses 5 or 20."""
    task_blocks: Annotated[int, at_least(1)] = 3
    """Number of blocks after those that have the task's prompt."""
    pull: Annotated[float, at_least(0)] = 1.0
    """Weight of the cosine between the queries and the key of their task."""
    start: Annotated[float, positive] = 0.1
    """Prompts and keys start uniform in +-start. Larger prompts disturb the frozen features before
    anything is learnt. As published they start uniform in 0 .. 1."""
    flavour: Literal["corrected", "as_published"] = "corrected"
    """Which version of the method runs."""

    title = "Fed-DualPrompt"
    sends = "general prompt, the task's prompt and key, its head rows, float32, every round"
    verified = "partly: loss, choice and averaging tested; widths rescaled, accuracy not compared"

    def require_possible(self, n_tasks: int) -> None:
        """ValueError also where the ViT has too few blocks."""
        super().require_possible(n_tasks)
        self.require_blocks(self.general_blocks + self.task_blocks, "general_blocks + task_blocks")

    def start_task(self, state: ServerState) -> ServerState:
        """Add the prompt and the key of the task, and at first the general prompt."""
        state, sizes = super().start_task(state), self.vit.sizes
        random = seeded_random("prompts", state.seed, state.task)
        low, high = (0.0, 1.0) if self.flavour == "as_published" else (-self.start, self.start)
        n_keys = self.task_blocks if self.flavour == "as_published" else 1

        def uniform(*shape: int) -> Tensor:
            drawn = torch.rand(shape, generator=random)
            return (low + (high - low) * drawn).to(self.torch_device)

        new = {
            "prompts": uniform(1, self.task_blocks, 2, self.task_length, sizes.width),
            "keys": uniform(1, n_keys, sizes.width),
        }
        if "general" not in state.weights:
            new["general"] = uniform(self.general_blocks, 2, self.general_length, sizes.width)
        return replace(state, weights=add_rows(state.weights, new))

    def first_trained(self, task: int, known: int) -> dict[str, int]:
        """The general prompt, the last prompt and key, and the head's rows of the new classes."""
        first = {"general": 0, "prompts": task, "keys": task}
        if self.flavour == "as_published":
            del first["keys"]
        return {**first, "head.weight": known, "head.bias": known}

    def features(self, weights: Weights, X: Embedded, task: int | None = None) -> Tensor:
        """The class token under the general prompt and the prompt of the task or of the key."""
        n, prefixes = len(X), {}
        for block, prompt in enumerate(weights["general"]):
            prefixes[block] = prompt.expand(n, -1, -1, -1)
        chosen = None if task is not None else choose_prompts(X.query, weights["keys"])
        for i in range(self.task_blocks):
            if chosen is None:
                prefix = weights["prompts"][task, i].expand(n, -1, -1, -1)
            else:
                prefix = weights["prompts"][chosen[:, i % chosen.shape[1]], i]
            prefixes[self.general_blocks + i] = prefix
        return self.vit.features(X.tokens, prefixes)

    def loss(self, client: ClientRound, weights: Weights, X: Embedded, codes: Tensor) -> Tensor:
        """Cross-entropy over the new classes - pull x mean cosine of queries and the task's key."""
        value = super().loss(client, weights, X, codes)
        if self.flavour == "as_published":
            return value
        key = weights["keys"][client.task]
        return value - self.pull * torch.nn.functional.cosine_similarity(X.query, key).mean()


def choose_prompts(query: Tensor, keys: Tensor) -> Tensor:
    """For each query (n, w) the task (n, k) whose key (tasks, k, w) has the largest cosine."""
    query, keys = (torch.nn.functional.normalize(v, dim=-1) for v in (query, keys))
    return torch.einsum("nw,tkw->nkt", query, keys).argmax(-1)
