"""Networks to compute with: built once a process, filled with whatever weights are at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from fedran.methods.trained.training.lazy_torch import Tensor, Weights, load_torch, torch
from fedran.methods.trained.training.tensors import inputs
from fedran.methods.trained.training.weights import put, read_weights, weights_of

if TYPE_CHECKING:
    from fedran.methods.trained.training.networks import Network

Role = Literal["student", "teacher"]
ROWS_AT_ONCE = 500


@lru_cache(maxsize=8)
def _network(name: Any, in_features: int, device: str, role: Role) -> Network:
    from fedran.methods.trained.training.networks import build

    network = build(name, in_features).to(device)
    if name != "head" and device != "cpu":
        network = network.to(memory_format=torch.channels_last)
    for parameter in network.parameters():
        parameter.requires_grad_(role == "student")
    return network


def student(name: str, weights: Mapping[str, Tensor], device: str) -> Network:
    """The network being trained, in training mode; its next call overwrites it."""
    return put(weights, _sized(name, weights, device, "student")).train()


def teacher(name: str, weights: Mapping[str, Tensor], device: str) -> Network:
    """A second network that only looks: no gradients, BatchNorm as recorded."""
    network = put(weights, _sized(name, weights, device, "teacher")).eval()
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    return network


def _sized(name: str, weights: Mapping[str, Tensor], device: str, role: Role) -> Network:
    return _network(name, int(weights["head.weight"].shape[1]), device, role)


def first_weights(name: Any, in_features: int, path: str, seed: int, device: str) -> Weights:
    """Weights to start from: random by the seed, or from a file; no classes yet."""
    load_torch()
    from fedran.methods.trained.training.networks import build, initialise

    network = build(name, in_features)
    initialise(network, seed)
    if path:
        read_weights(path, network)
    return {n: t.to(device) for n, t in weights_of(network).items()}


def fast(network: Network, device: str) -> AbstractContextManager[Any]:
    """Mixed precision (bfloat16) for training on a GPU, plain float32 elsewhere.

    A head alone trains in float32: it is small, and its features were made in float32.
    """
    wanted = device.startswith("cuda") and not isinstance(network.body, torch.nn.Identity)
    return torch.autocast("cuda", torch.bfloat16, enabled=wanted)


def in_batches(f: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    """f over rows, a few hundred at once, without gradients, in float32."""
    with torch.inference_mode():
        parts = [f(inputs(part)).float() for part in X.split(ROWS_AT_ONCE)]
    return torch.cat(parts)
