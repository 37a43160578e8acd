"""Low-rank changes of linear layers of a frozen ViT (LoRA, Hu et al. 2022).

A layer with the weights W (out, in) becomes W + B A with ``up`` B (out, rank) and ``down`` A
(rank, in). Layers are named as in the ViT, for example ``blocks.0.attn.qkv``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedran_bench.methods.prompted.frozen_vit import FrozenViT, frozen_vit
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights, torch


def random_down(*shape: int, random: Any) -> Tensor:
    """A (..., rank, in), uniform in +-1 / sqrt(in): Kaiming's rule with a = sqrt 5."""
    return (2 * torch.rand(shape, generator=random) - 1) / math.sqrt(shape[-1])


def changed_features(
    vit: FrozenViT, path: str, tokens: Tensor, changes: Mapping[str, Tensor]
) -> Tensor:
    """The class token (n, width) in float32, with ``changes`` added to the weights of layers.

    Sums are computed in float32, from weights read from ``path``, and then rounded to the
    precision of the network. In bfloat16 a small change of rounded weights would be lost.
    """
    exact = dict(frozen_vit(path, vit.device, "float32").network.named_parameters())
    by_block: dict[int, Weights] = {}
    for name, change in changes.items():
        _, block, layer = name.split(".", 2)
        weights = (exact[f"{name}.weight"] + change).to(vit.dtype)
        by_block.setdefault(int(block), {})[f"{layer}.weight"] = weights
    for number, module in enumerate(vit.network.blocks):
        tokens = torch.func.functional_call(module, by_block.get(number, {}), (tokens,))
    return vit.network.norm(tokens)[:, 0].float()


@contextmanager
def input_grams(vit: FrozenViT, layers: tuple[str, ...]) -> Iterator[dict[str, Tensor]]:
    """X'X (in, in) of the inputs of these layers, over all tokens that pass them meanwhile."""
    grams: dict[str, Tensor] = {}
    modules = dict(vit.network.named_modules())

    def add(name: str) -> Any:
        def hook(_module: Any, given: tuple[Tensor]) -> None:
            X = given[0].detach().flatten(0, -2).float()
            grams[name] = grams[name] + X.T @ X if name in grams else X.T @ X

        return hook

    handles = [modules[name].register_forward_pre_hook(add(name)) for name in layers]
    try:
        yield grams
    finally:
        for handle in handles:
            handle.remove()


def pack_symmetric(G: Tensor) -> Tensor:
    """The lower triangles of symmetric matrices (..., m, m) as (..., m (m + 1) / 2)."""
    i, j = torch.tril_indices(G.shape[-1], G.shape[-1], device=G.device)
    return G[..., i, j]


def unpack_symmetric(packed: Tensor, m: int) -> Tensor:
    """Inverse of ``pack_symmetric``."""
    i, j = torch.tril_indices(m, m, device=packed.device)
    G = packed.new_zeros((*packed.shape[:-1], m, m))
    G[..., i, j] = packed
    G[..., j, i] = packed
    return G
