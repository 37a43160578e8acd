"""Goals of the project, next to the committed results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedran.bench.results.result import Result

MIB = 2**20


@dataclass(frozen=True)
class Target:
    """A difference of two methods on the same streams that must be at least ``least``."""

    where: str
    what: str
    ours: Callable[[Result], bool]
    theirs: Callable[[Result], bool]
    measure: Callable[[Result], float]
    least: float
    most_mib: float | None = None


CIFAR, VTAB = "cifar100-efficientnet_lite0", "vtab50-efficientnet_lite0"


def _is(
    key: str,
    *,
    study: str = "accuracy",
    dataset: str = CIFAR,
    clients: int = 5,
    beta: float | None = None,
    rate: float = 1.0,
):
    return lambda r: (
        (r.study, r.dataset, r.stream["clients"], r.key) == (study, dataset, clients, key)
        and (beta is None or r.stream["beta"] == beta)
        and r.stream["label_rate"] == rate
    )


def a_avg(r: Result) -> float:
    return r.A_avg


def a_t(r: Result) -> float:
    return r.A_T


def targets() -> list[Target]:
    """The goals as the plan of the project states them."""
    found = []
    for beta in (0.1, 0.5, 1.0):
        pair = (_is("fedran", beta=beta), _is("fedran-paper", beta=beta))
        where = f"CIFAR-100, 5 clients, β = {beta:g}: FedRAN minus FedRAN-paper r = 2048"
        found.append(Target(where, "A_avg", *pair, a_avg, 0.2, 1.5))
        found.append(Target(where, "A_T", *pair, a_t, 1.3, 1.5))
    pair = (_is("fedran", clients=100), _is("fedran-paper", clients=100))
    where = "CIFAR-100, 100 clients, β = 0.5: FedRAN minus FedRAN-paper r = 512"
    found += [Target(where, "A_avg", *pair, a_avg, 3.0, 0.6)]
    found += [Target(where, "A_T", *pair, a_t, 5.0, 0.6)]
    for beta in (0.1, 0.5, 1.0):
        pair = (
            _is("fedran", dataset=VTAB, beta=beta),
            _is("fedran-paper", dataset=VTAB, beta=beta),
        )
        where = f"VTAB-50, β = {beta:g}: FedRAN minus FedRAN-paper r = 512"
        found.append(Target(where, "A_avg", *pair, a_avg, -0.2, 0.6))
        found.append(Target(where, "A_T", *pair, a_t, -0.2, 0.6))
    for rate, least in ((0.2, 3.0), (0.1, 5.5)):
        margin = _is("fedran-margin", study="labels", rate=rate)
        where = f"CIFAR-100, β = 0.1, {rate:.0%} labels: margin pseudo-labels minus"
        only, rule = (
            _is("fedran", study="labels", rate=rate),
            _is("fedran-prototype", study="labels", rate=rate),
        )
        found.append(Target(f"{where} labelled only", "A_avg", margin, only, a_avg, least))
        found.append(Target(f"{where} prototype pseudo-labels", "A_avg", margin, rule, a_avg, 0.0))
    return found


SLOW = ("fedran-paper", "ranpac", "loranpac")


def minutes(results: Sequence[Result]) -> list[str]:
    """Sentences about the time that one stream of the CIFAR-100 table takes on two cores."""
    runs = [r for r in results if r.study == "runtime" and r.side_by_side == 1]
    spent = {
        r.key: sum(sum(t.seconds.client) + t.seconds.server for t in r.tasks) / 60 for r in runs
    }
    fast = {k: v for k, v in spent.items() if k not in SLOW}
    slow = {k: v for k, v in spent.items() if k in SLOW}
    machine = ", ".join(dict.fromkeys(r.machine for r in runs))
    lines = [
        f"- Time for one β and one seed of the CIFAR-100 table with cached features on {machine}: "
        f"{sum(fast.values()):.1f} minutes for {len(fast)} methods (goal: under 12). Clients run "
        "one after the other; loading and testing are not counted."
    ]
    if len(slow) == len(SLOW):
        each = ", ".join(f"{k} {v:.1f}" for k, v in slow.items())
        lines.append(
            f"- With the slow methods ({each}): {sum(spent.values()):.1f} minutes (goal: under 60)."
        )
    else:
        missing = ", ".join(k for k in SLOW if k not in slow)
        lines.append(f"- Not run to the end: {missing}. So there is no figure for all methods.")
    return lines


def table(results: Sequence[Result]) -> list[str]:
    """Markdown rows."""
    lines = [
        "| comparison | measure | at least | measured | largest upload | goal |",
        "|---|---|---:|---:|---:|---|",
    ]
    for t in targets():
        ours, theirs = (_by_seed(results, chosen) for chosen in (t.ours, t.theirs))
        common = sorted(ours.keys() & theirs.keys())
        if not common:
            lines.append(f"| {t.where} | {t.what} | {t.least:+.1f} | not run | | |")
            continue
        gap = float(np.mean([t.measure(ours[s]) - t.measure(theirs[s]) for s in common]))
        upload = max(r.max_upload for r in ours.values()) / MIB
        limit = "" if t.most_mib is None else f" (at most {t.most_mib:g})"
        met = gap >= t.least and (t.most_mib is None or upload <= t.most_mib)
        verdict = "met" if met else "**missed**"
        lines.append(
            f"| {t.where} | {t.what} | {t.least:+.1f} | {gap:+.2f} "
            f"| {upload:.2f} MiB{limit} | {verdict} |"
        )
    return lines


def _by_seed(results: Sequence[Result], chosen: Callable[[Result], bool]) -> dict[int, Result]:
    return {r.seeds["order"]: r for r in results if chosen(r)}
