"""Trained methods as tables see them: network, start, rounds, and which printed row is theirs."""

from __future__ import annotations

from fedran.bench.report.paper import paper_method
from fedran.bench.results.grouping import Group
from fedran.bench.results.result import Result

NETWORKS = {
    "head": "linear head",
    "small": "small network",
    "resnet18": "ResNet-18",
    "resnet18-7x7": "ResNet-18, 7x7 stem",
}


def is_trained(result: Result) -> bool:
    """Whether gradients made the model."""
    return result.family == "trained"


def is_head(result: Result) -> bool:
    """Whether only a linear head is trained, on frozen features."""
    return is_trained(result) and result.params.get("network") == "head"


def on_images(result: Result) -> bool:
    """Whether a whole network is trained, on the images: then its features drift."""
    return is_trained(result) and not is_head(result)


def network(result: Result) -> str:
    """The network in words; '' where none is recorded.

    >>> from types import SimpleNamespace as R
    >>> network(R(params={"network": "resnet18"})), network(R(params={"network": "vit"}))
    ('ResNet-18', 'vit')
    """
    name = str(result.params.get("network", ""))
    return NETWORKS.get(name, name)


def start(result: Result) -> str:
    """What training starts from."""
    if is_head(result):
        return "frozen features"
    return str(result.params.get("weights") or "random weights")


def rounds_a_task(result: Result) -> int:
    """Rounds of training; a closing round that only hands out the model is not one.

    >>> from types import SimpleNamespace as R
    >>> rounds_a_task(R(params={"n_rounds": 10}, tasks=[R(rounds=11)]))
    10
    >>> rounds_a_task(R(params={}, tasks=[R(rounds=1)]))
    1
    """
    told = result.params.get("n_rounds")
    return told if isinstance(told, int) and told > 0 else result.tasks[0].rounds


def row_order(g: Group) -> int:
    """Heads, networks on images, analytic methods, then what is not ranked."""
    if not g.competes:
        return 3
    return 0 if is_head(g.first) else 1 if is_trained(g.first) else 2


def paper_row(g: Group) -> str | None:
    """The paper's name of a method; None for a head, which starts elsewhere than the paper's."""
    return None if is_head(g.first) else paper_method(g.key)
