"""Fed-CODA-Prompt: each image's prompt is a weighted sum of components.

Smith et al., "CODA-Prompt: COntinual Decomposed Attention-based Prompting for Rehearsal-Free
Continual Learning", 2023, with components and head averaged over clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fedran.settings import Rule, at_least
from fedran_bench.methods.prompted.base import PromptedMethod, add_rows
from fedran_bench.methods.prompted.frozen_vit import Embedded, vit_sizes
from fedran_bench.methods.trained.fedavg import ServerState
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights, torch
from fedran_bench.methods.trained.local_training import seeded_random

EVEN = Rule(lambda v: v >= 2 and v % 2 == 0, "an even number of at least 2")
POOL = ("components", "keys", "attention")
"""(m, blocks, length, width), (m, blocks, width) and (m, blocks, width) for m components."""


@dataclass(frozen=True)
class FedCODAPrompt(PromptedMethod):
    """In block l the prompt of an image is sum_m alpha_m P_ml, alpha_m = cos(q * A_ml, K_ml).

    q is the query of the image, * the product of entries; P are the components, K their keys and
    A their attention vectors. The first half of the prompt is used as keys and the second as values
    of the block's attention. Every task adds components. Those of earlier tasks take part in the
    sum but are no longer trained. A penalty that keeps them orthonormal has the weight 0 in the
    published code and is left out; they start orthonormal.
    """

    components: Annotated[int, at_least(1)] = 10
    """Components per task. The paper divides 100 among all tasks. All tasks together may have as
    many as the width of the network."""
    length: Annotated[int, EVEN] = 8
    """Rows of a component: half of them are keys, half are values."""
    blocks: Annotated[int, at_least(1)] = 5
    """Number of first blocks that have a prompt."""

    title = "Fed-CODA-Prompt"
    sends = "components, keys and attention vectors of the task, its head rows, every round"
    verified = "partly: prompts, loss and averaging tested; widths rescaled, accuracy not compared"

    def require_possible(self, n_tasks: int) -> None:
        """ValueError also where the ViT has too few blocks, or is too narrow for the components."""
        super().require_possible(n_tasks)
        self.require_blocks(self.blocks, "blocks")
        sizes = vit_sizes(self.weights)
        if self.components * n_tasks > sizes.width:
            raise ValueError(
                f"components must be at most {sizes.width // n_tasks}, so that those of {n_tasks} "
                f"tasks can be orthogonal in {sizes.width} dimensions, got {self.components}"
            )

    def start_task(self, state: ServerState) -> ServerState:
        """Add components, keys and attention vectors that are orthonormal to all earlier ones."""
        state, sizes = super().start_task(state), self.vit.sizes
        random = seeded_random("components", state.seed, state.task)
        new = {}
        for name in POOL:
            shape = (self.length, sizes.width) if name == "components" else (sizes.width,)
            old = state.weights.get(name, torch.zeros(0, self.blocks, *shape))
            parts = [
                orthonormal_rows(self.components, of_block.flatten(1), random)
                for of_block in old.unbind(1)
            ]
            rows = torch.stack(parts, 1).unflatten(2, shape)
            new[name] = rows.to(self.torch_device)
        return replace(state, weights=add_rows(state.weights, new))

    def first_trained(self, task: int, known: int) -> dict[str, int]:
        """The components of the task, and the head's rows of the new classes."""
        first = dict.fromkeys(POOL, task * self.components)
        return {**first, "head.weight": known, "head.bias": known}

    def features(self, weights: Weights, X: Embedded, task: int | None = None) -> Tensor:
        """The class token under the prompts of all components so far."""
        return self.vit.features(X.tokens, self.prefixes(weights, X.query))

    def prefixes(self, weights: Weights, query: Tensor) -> dict[int, Tensor]:
        """Keys and values (n, 2, length / 2, width) for each of the first blocks."""
        alpha = component_weights(query, weights["attention"], weights["keys"])
        prompts = torch.einsum("nml,mlkw->lnkw", alpha, weights["components"])
        return dict(enumerate(prompts.unflatten(2, (2, -1))))


def component_weights(query: Tensor, attention: Tensor, keys: Tensor) -> Tensor:
    """alpha (n, m, blocks) = cos(q * A, K) for queries (n, w), A and K (m, blocks, w).

    The products q * A (n, m, blocks, w) are not formed: <q * A, K> = <q, A * K> and
    ||q * A||^2 = <q^2, A^2>.
    """
    keys = torch.nn.functional.normalize(keys, dim=-1)
    inner = torch.einsum("nw,mlw->nml", query, attention * keys)
    squares = torch.einsum("nw,mlw->nml", query**2, attention**2)
    return inner / squares.clamp(min=1e-24).sqrt()


def orthonormal_rows(count: int, old: Tensor, random: object) -> Tensor:
    """Random orthonormal rows (count, d) that are orthogonal to the rows of ``old``.

    Gram-Schmidt by QR in float64. ``old`` has at most d - count rows.
    """
    d = old.shape[1]
    drawn = torch.randn(count, d, generator=random, dtype=torch.float64)
    both = torch.cat([old.detach().cpu().double(), drawn])
    Q = torch.linalg.qr(both.T).Q.T
    return Q[len(old) :].float()
