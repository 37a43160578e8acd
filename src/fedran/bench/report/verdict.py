"""Who leads: the best method of each kind, and the verdict in at most six lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fedran.bench.results.grouping import Case, Group, comparison_cases, frozen_and_tuned, is_ours
from fedran.bench.results.metrics import is_fine_tuned, is_head, is_prompted, is_trained
from fedran.bench.results.result import DEFAULT_STUDY, Result
from fedran.data.catalogue import dataset_title
from fedran.wire.sizes import human_bytes

LINES = 6
"""Sentences of a verdict."""
HIGHLIGHTED = 8
"""Methods with a colour in a figure. All others are grey."""
OURS, MIXTURE, TUNED = "FedRAN", "FedRAN-mixture", "FedRAN, network fine-tuned in task 0"
PAPER = "FedRAN (paper)"
ANALYTIC = "best other method without training"
HEAD = "best trained head on the features"
PROMPTS = "best prompt or LoRA method"
NETWORK = "best network from scratch"
POOLED = "all rows in one place"
ROLES = (OURS, MIXTURE, TUNED, ANALYTIC, HEAD, PROMPTS, NETWORK, POOLED, PAPER)
"""Every kind of method that has a leader; the most important first."""


def role(g: Group) -> str:
    """The kind of a method; empty for a method that leads nothing."""
    if not g.competes:
        return POOLED
    if is_ours(g):
        if is_fine_tuned(g.first):
            return TUNED if g.key in ("fedran", "fedran-mixture") else ""
        return {"fedran": OURS, "fedran-mixture": MIXTURE, "fedran-paper": PAPER}.get(g.key, "")
    if not is_trained(g.first):
        return "" if is_fine_tuned(g.first) else ANALYTIC
    return HEAD if is_head(g.first) else PROMPTS if is_prompted(g.first) else NETWORK


def leaders(found: Iterable[Group]) -> dict[str, Group]:
    """The most accurate method of at most eight kinds.

    Runs that only vary the size of our messages do not lead.
    """
    best: dict[str, Group] = {}
    for g in found:
        kind = role(g)
        if kind and (kind not in best or _strength(g) > _strength(best[kind])):
            best[kind] = g
    return {kind: best[kind] for kind in [k for k in ROLES if k in best][:HIGHLIGHTED]}


def _strength(g: Group) -> tuple[bool, float]:
    return not is_ours(g) or g.first.study == DEFAULT_STUDY, g.A_T.mean


def strongest(found: Iterable[Group]) -> Group | None:
    """The most accurate method; ours at their usual sizes before those that only vary the size."""
    return max(found, key=_strength, default=None)


def _final(g: Group) -> float:
    return g.A_T.mean


def main_beta(members: Iterable[Group]) -> float | None:
    """The beta with the most methods; of equal ones the most skewed."""
    counts = Counter(g.beta for g in members)
    return min(counts, key=lambda b: (-counts[b], b is None, b or 0.0))


def main_case(results: Iterable[Result]) -> tuple[Case, list[Group]] | None:
    """The first setting at its main beta, with its groups."""
    cases = comparison_cases(results)
    if not cases:
        return None
    setting = next(iter(cases))[0]
    beta = main_beta(g for (s, _), found in cases.items() if s == setting for g in found)
    return Case(setting, beta), cases[Case(setting, beta)]


def verdict(found: Sequence[Group]) -> list[str]:
    """What the methods of one setting and beta achieve, in at most six sentences."""
    lead = leaders(found)
    ours = next((lead[kind] for kind in (OURS, MIXTURE, TUNED) if kind in lead), None)
    base = ours or max(found, key=lambda g: (g.competes, g.A_T.mean))
    lines = [
        f"{base.name} classifies {base.A_T.mean:.1f} % of the test rows correctly after the last "
        f"task. No client uploads more than {_size(base)} in a task."
    ]
    for kind, what in (
        (MIXTURE, "our message for small budgets"),
        (TUNED, "after its clients have trained adapters of the network in the first task"),
    ):
        if kind in lead and lead[kind] is not base:
            g = lead[kind]
            lines.append(f"{g.name}, {what}: {g.A_T.mean:.1f} % with {_size(g)}.")
    rivals = [g for g in found if g.competes and not is_ours(g) and g is not base]
    if ours is None and not rivals:  # variants of one method
        others = (g for g in found if g.competes and g is not base)
        lines += [f"{g.name}: {g.A_T.mean:.1f} % with {_size(g)}." for g in others]
    best = max(rivals, key=_final, default=None)
    if best is not None:
        # A method on a fine-tuned network is compared with ours on such a network.
        peer = lead.get(TUNED, base) if is_fine_tuned(best.first) else base
        lines.append(f"The best other method, {best.name}: {_beside(best, peer)}.")
    learned = max((g for g in rivals if is_trained(g.first)), key=_final, default=None)
    if learned is not None and learned is not best:
        lines.append(f"The best method that trains, {learned.name}: {_beside(learned, base)}.")
    if POOLED in lead:
        g = lead[POOLED]
        lines.append(f"With all rows in one place ({g.name}): {_beside(g, base)}.")
    return lines[:LINES]


def overall_verdict(results: Sequence[Result]) -> list[str]:
    """The verdict on the first setting, and one sentence on all comparisons."""
    first = main_case(results)
    if first is None:
        return []
    lines, total = verdict(first[1]), _over_all(results)
    return [*lines[: LINES - 1], total] if total else lines


def _over_all(results: Iterable[Result]) -> str:
    """How often our messages are the most accurate, and where they are furthest behind.

    A difference that rounds to 0.0 points is a tie.
    """
    gaps = []
    for (setting, beta), _, found in frozen_and_tuned(results):
        lead = leaders(found)
        ours = [lead[kind].A_T.mean for kind in (OURS, MIXTURE, TUNED) if kind in lead]
        rivals = [g for g in found if g.competes and not is_ours(g)]
        if ours and rivals:
            best = max(rivals, key=_final)
            gap = round(best.A_T.mean - max(ours), 1)
            gaps.append((gap, best.name, setting.dataset, beta))
    if len(gaps) < 2:
        return ""
    won, ties = sum(gap < 0 for gap, *_ in gaps), sum(gap == 0 for gap, *_ in gaps)
    text = (
        f"In {won} of {len(gaps)} comparisons (dataset, clients, skew of the split, network "
        "frozen or fine-tuned) one of our messages is the most accurate federated method"
    )
    if ties:
        text += f", and in {ties} as accurate as the best other one"
    gap, name, dataset, beta = max(gaps, key=lambda g: g[0])
    if gap <= 0:
        return f"{text}."
    skew = "" if beta is None else f", β = {beta:g}"
    where = dataset_title(dataset)
    return f"{text}. It is behind by at most {gap:.1f} points ({name} on {where}{skew})."


def _size(g: Group) -> str:
    return human_bytes(g.largest_upload)


def _beside(g: Group, base: Group) -> str:
    """Accuracy and upload of a method, and both beside those of another one."""
    sizes = g.largest_upload, base.largest_upload
    times = ""
    if min(sizes) > 0:
        factor = max(sizes) / min(sizes)
        shown = f"{factor:.0f}" if factor >= 9.5 else f"{factor:.1f}"
        times = f", {shown} times {'the' if sizes[0] >= sizes[1] else 'fewer'} bytes"
    points = _than(g.A_T.mean - base.A_T.mean, base.name)
    return f"{g.A_T.mean:.1f} % with {_size(g)} ({points}{times})"


def _than(gap: float, name: str) -> str:
    """A difference from the accuracy of another method.

    >>> _than(-2.84, "AFL"), _than(0.5, "AFL"), _than(-0.04, "AFL")
    ('2.8 points less than AFL', '0.5 points more than AFL', 'as accurate as AFL')
    """
    if round(abs(gap), 1) == 0.0:
        return f"as accurate as {name}"
    return f"{abs(gap):.1f} points {'less' if gap < 0 else 'more'} than {name}"
