"""Weights as plain tensors: averaged, checked and put into networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from fedran.core.errors import Refused
from fedran_bench.methods.trained.lazy_torch import Tensor, Weights, load_torch, torch
from fedran_bench.methods.trained.rows import network_input

if TYPE_CHECKING:
    from fedran_bench.methods.trained.networks import Network

Averaging = Literal["unweighted", "weighted"]
COUNTERS = "num_batches_tracked"
"""Step counters of BatchNorm. Nothing reads them, so they are neither sent nor averaged."""
ROWS_PER_PASS = 500


def copy_weights(network: Network) -> Weights:
    """A copy of all parameters and BatchNorm statistics."""
    state = network.state_dict()
    return {n: t.detach().clone() for n, t in state.items() if not n.endswith(COUNTERS)}


def load_weights(weights: Mapping[str, Tensor], network: Network) -> Network:
    """The network, with a head of the right size, holding these weights."""
    network.head.resize(len(weights["head.bias"]))
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if not name.endswith(COUNTERS):
                tensor.copy_(weights[name])
    return network


def initial_weights(name: Any, in_features: int, seed: int, device: str) -> Weights:
    """Random weights of a network without classes."""
    load_torch()
    from fedran_bench.methods.trained.networks import build, initialise

    network = build(name, in_features)
    initialise(network, seed)
    return {n: t.to(device) for n, t in copy_weights(network).items()}


def grow_head(weights: Weights, classes: int, seed: int) -> Weights:
    """The same weights with a head of at least ``classes`` rows: old rows kept, new ones random.

    New rows are uniform in +-sqrt(3 / d), Kaiming's rule for a linear layer; new biases are 0.
    """
    W = weights["head.weight"]
    new = classes - len(W)
    if new <= 0:
        return weights
    bound = math.sqrt(3.0 / W.shape[1])
    generator = torch.Generator().manual_seed(seed)
    rows = bound * (2 * torch.rand((new, W.shape[1]), generator=generator) - 1)
    grown = {**weights, "head.weight": torch.cat([W, rows.to(W)])}
    if "head.bias" in weights:
        b = weights["head.bias"]
        grown["head.bias"] = torch.cat([b, b.new_zeros(new)])
    return grown


def average(found: Sequence[tuple[Weights, int]], how: Averaging) -> Weights:
    """FedAvg over (weights, rows): all clients equally, or in proportion to their rows.

    Sums run in float64, where float32 values times row counts are exact: the average of identical
    clients is that client, bit for bit. BatchNorm statistics are averaged like weights.
    """
    counts = [rows if how == "weighted" else 1 for _, rows in found]
    total = sum(counts)
    mean = {}
    for name in found[0][0]:
        parts = (w[name].double() * n for (w, _), n in zip(found, counts, strict=True))
        mean[name] = (sum(parts) / total).float()
    return mean


def check_weights(weights: Mapping[str, Tensor], like: Mapping[str, Tensor], what: str) -> Weights:
    """Weights from outside, refused unless names and shapes equal ``like``, float32 and finite."""
    missing, extra = like.keys() - weights.keys(), weights.keys() - like.keys()
    if missing or extra:
        wrong = f"without {min(missing)}" if missing else f"with {min(extra)}"
        raise Refused(what, f"the {len(like)} tensors of this network", wrong)
    for name, tensor in weights.items():
        if tensor.dtype != torch.float32 or tensor.shape != like[name].shape:
            expected = f"float32 {list(like[name].shape)}"
            raise Refused(f"{what}: {name}", expected, f"{tensor.dtype} {list(tensor.shape)}")
    if not bool(torch.stack([t.isfinite().all() for t in weights.values()]).all()):
        raise Refused(what, "finite values", "NaN or infinity")
    variances = [t for n, t in weights.items() if n.endswith("running_var") and bool((t < 0).any())]
    if variances:
        raise Refused(what, "variances of at least 0", float(variances[0].min()))
    return dict(weights)


@lru_cache(maxsize=8)
def _network(name: Any, in_features: int, device: str, trainable: bool) -> Network:
    """A network that is built once per process and reused with the weights loaded next."""
    from fedran_bench.methods.trained.networks import build

    network = build(name, in_features).to(device)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.num_batches_tracked = None  # saves one kernel per layer and step
    if name != "head" and device != "cpu":
        network = network.to(memory_format=torch.channels_last)
    return network.requires_grad_(trainable)


def student_network(name: str, weights: Mapping[str, Tensor], device: str) -> Network:
    """The network to train, in training mode. The next call overwrites it."""
    network = _network(name, int(weights["head.weight"].shape[1]), device, trainable=True)
    return load_weights(weights, network).train()


def teacher_network(name: str, weights: Mapping[str, Tensor], device: str) -> Network:
    """A second network for evaluation: no gradients, recorded BatchNorm statistics."""
    network = _network(name, int(weights["head.weight"].shape[1]), device, trainable=False)
    return load_weights(weights, network).eval().requires_grad_(False)


def evaluate(f: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    """f over all rows, ``ROWS_PER_PASS`` at a time, without gradients, in float32."""
    with torch.inference_mode():
        parts = [f(network_input(part)).float() for part in X.split(ROWS_PER_PASS)]
    return torch.cat(parts)
