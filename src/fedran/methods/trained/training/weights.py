"""Weights as plain tensors: read from a network, grown, averaged, checked, read from a file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedran.core.errors import Refused
from fedran.methods.trained.training.lazy_torch import Tensor, Weights, torch

if TYPE_CHECKING:
    from fedran.methods.trained.training.networks import Network

HEAD = ("head.weight", "head.bias")
COUNTERS = "num_batches_tracked"
"""BatchNorm's step counters: nothing reads them, so they neither travel nor are averaged."""
NO_FILE = "no such file; expected weights (.safetensors)"
Averaging = Literal["unweighted", "weighted"]


def weights_of(network: Network) -> Weights:
    """A copy of everything that travels."""
    state = network.state_dict()
    return {n: t.detach().clone() for n, t in state.items() if not n.endswith(COUNTERS)}


def put(weights: Mapping[str, Tensor], network: Network) -> Network:
    """The network, holding these weights."""
    network.head.resize(len(weights["head.bias"]))
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if not name.endswith(COUNTERS):
                tensor.copy_(weights[name])
    return network


def grown(weights: Weights, classes: int, seed: int) -> Weights:
    """The same with a head of ``classes`` rows: old rows kept, new ones random, bias zero.

    New rows are uniform in +-sqrt(3 / d), Kaiming's rule for a linear layer.
    """
    W, b = weights["head.weight"], weights["head.bias"]
    new = classes - len(b)
    if new <= 0:
        return weights
    bound = math.sqrt(3.0 / W.shape[1])
    generator = torch.Generator().manual_seed(seed)
    rows = bound * (2 * torch.rand((new, W.shape[1]), generator=generator) - 1)
    return {
        **weights,
        "head.weight": torch.cat([W, rows.to(W)]),
        "head.bias": torch.cat([b, b.new_zeros(new)]),
    }


def average(found: Sequence[tuple[Weights, int]], how: Averaging) -> Weights:
    """FedAvg over (weights, rows): every client the same, or by its rows.

    Sums run in float64, where clients' float32 values times row counts are exact: the average of
    identical clients is that client, bit for bit. BatchNorm statistics are averaged like weights.
    """
    counts = [rows if how == "weighted" else 1 for _, rows in found]
    total = sum(counts)
    mean = {}
    for name in found[0][0]:
        parts = (w[name].double() * n for (w, _), n in zip(found, counts, strict=True))
        mean[name] = (sum(parts) / total).float()
    return mean


def check_weights(weights: Mapping[str, Tensor], like: Mapping[str, Tensor], what: str) -> Weights:
    """Weights from outside: the same names and shapes as ``like``, float32, finite."""
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


def read_weights(path: str, network: Network) -> None:
    """Put a safetensors file of body weights into a network; a head in the file is left out.

    Names are those of the body, as common weight files of ResNet-18 have them.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: {NO_FILE}") from None
    except (SafetensorError, OSError) as reason:
        raise Refused(path, "a safetensors file", str(reason)) from None
    like = {n: t for n, t in weights_of(network).items() if n not in HEAD}
    body = {f"body.{n.removeprefix('body.')}": t.float() for n, t in found.items()}
    body = {
        n: t
        for n, t in body.items()
        if not n.endswith(COUNTERS) and not n.startswith(("body.fc.", "body.head."))
    }
    checked = check_weights(body, like, path)
    put({**weights_of(network), **checked}, network)


def file_hash(path: str) -> str:
    """SHA-256 of a file of weights."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: {NO_FILE}")
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
