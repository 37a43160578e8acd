"""Who leads: the best method of each kind, and the verdict in at most six lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedran.wire.sizes import human_bytes
from fedran_bench.results.grouping import (
    ARRIVALS,
    Group,
    Setting,
    by_setting,
    comparisons,
    counted,
    groups,
    is_fine_tuned,
    is_ours,
    training,
)
from fedran_bench.results.result import DEFAULT_STUDY, Result, dataset_title

LINES = 6
"""Sentences of a verdict."""
POINTS, SUMS, TUNED = "FedRAN-points", "FedRAN", "FedRAN, network fine-tuned in task 0"
PAPER = "FedRAN (paper)"
ANALYTIC = "best other method without training"
HEAD = "best trained head on the features"
PROMPTS = "best prompt or LoRA method"
NETWORK = "best network from scratch"
POOLED = "all rows in one place"
ROLES = (POINTS, SUMS, TUNED, ANALYTIC, HEAD, PROMPTS, NETWORK, POOLED, PAPER)
"""Every kind of method that has a leader; the most important first."""
MESSAGES = {"fedran-points": POINTS, "fedran": SUMS}
"""Methods whose messages come in several sizes."""

NAMED = (
    *("fedran-points", "fedran-paper", "stsa", "afl", "klda", "deepafl", "fedncm"),
    *("send-features-8bit", "send-images"),
)
"""Methods that readers look for. Figures and short tables name them besides the leaders."""


def role(g: Group) -> str:
    """The kind of a method; empty for a method that leads nothing."""
    if not g.competes:
        return POOLED
    if is_ours(g):
        if is_fine_tuned(g.first):
            return TUNED if g.key in MESSAGES else ""
        return {**MESSAGES, "fedran-paper": PAPER}.get(g.key, "")
    analytic = "" if is_fine_tuned(g.first) else ANALYTIC
    return {"": analytic, "head": HEAD, "prompts": PROMPTS, "network": NETWORK}[training(g.first)]


def leaders(found: Iterable[Group]) -> dict[str, Group]:
    """The best method of each kind.

    Runs that only vary the size of our messages do not lead.
    """
    kinds: dict[str, list[Group]] = {}
    for g in found:
        kinds.setdefault(role(g), []).append(g)
    best = {kind: strongest(kinds.get(kind, ())) for kind in ROLES}
    return {kind: g for kind, g in best.items() if g is not None}


def strongest(found: Iterable[Group]) -> Group | None:
    """The most accurate method, and of those whose lead is a tie the one with the fewest bytes.

    Ours at their usual sizes come before those that only vary the size.
    """
    found = list(found)
    found = [g for g in found if not is_ours(g) or g.first.study == DEFAULT_STUDY] or found
    best = max((g.A_T.mean for g in found), default=0.0)
    return min((g for g in found if _tied(best - g.A_T.mean)), key=lambda g: g.upload, default=None)


def _tied(gap: float) -> bool:
    """Whether a difference in accuracy is 0.0 points in print."""
    return round(abs(gap), 1) == 0.0


def main_setting(found: Iterable[Group]) -> tuple[Setting, list[Group]]:
    """The beta with the most methods, of equal ones the most skewed; the first setting only."""
    settings = by_setting(found)
    first = next(iter(settings)).any_beta
    betas = {s: members for s, members in settings.items() if s.any_beta == first}
    main = min(betas, key=lambda s: (-len(betas[s]), s.beta is None, s.beta or 0.0))
    return main, betas[main]


def where(setting: Setting, found: Sequence[Group]) -> str:
    """The setting of a verdict in words, for readers who do not know the terms."""
    beta, classes = setting.beta, len(found[0].first.classes)
    uneven = "uneven split" if beta is not None and beta < 1 else "split"
    skew = "" if beta is None else f", {uneven} (β = {beta:g}; a smaller β is more uneven)"
    labels = "" if setting.label_rate >= 1 else f", {100 * setting.label_rate:g} % labelled"
    arrival = ARRIVALS[setting.arrival]
    tasks, clients = counted(setting.tasks, "task"), counted(setting.clients, "client")
    title = dataset_title(setting.dataset)
    return f"{title}: {classes} classes in {tasks}, {clients}{arrival}{labels}{skew}"


def quoted(g: Group) -> str:
    """The name of a method; points say how many rows each of their groups has at least.

    Fewer rows per group make them more accurate and less private.
    """
    least = g.params.get("min_group")
    if least is None:
        return g.name
    name = g.name.removesuffix(f", at least {least}")
    if least == g.params.get("group_size") == 1:
        return f"{name}, every row"
    return f"{name}, at least {counted(int(least), 'row')} per group"


def verdict(found: Sequence[Group]) -> list[str]:
    """What the methods of one setting achieve, in at most six sentences."""
    lead = leaders(found)
    ours = next((lead[kind] for kind in (*MESSAGES.values(), TUNED) if kind in lead), None)
    base = ours or strongest([g for g in found if g.competes]) or found[0]
    lines = [
        f"{quoted(base)} classifies {base.A_T.mean:.1f} % of the test rows correctly after the "
        f"last task. No client uploads more than {human_bytes(base.upload)} in a task."
    ]
    grouped = [g for g in found if role(g) == POINTS and g.params.get("min_group", 1) > 1]
    for other, what in (
        (strongest(grouped), "no message holds a single row"),
        (
            lead.get(TUNED),
            "after its clients have trained adapters of the network in the first task",
        ),
    ):
        if other is not None and other is not base:
            size = human_bytes(other.upload)
            lines.append(f"{quoted(other)} ({what}): {other.A_T.mean:.1f} % with {size}.")
    rivals = [g for g in found if g.competes and not is_ours(g) and g is not base]
    if ours is None and not rivals:  # variants of one method
        others = (g for g in found if g.competes and g is not base)
        lines += [f"{g.name}: {g.A_T.mean:.1f} % with {human_bytes(g.upload)}." for g in others]
    best = strongest(rivals)
    if best is not None:
        # A method on a fine-tuned network is compared with ours on such a network.
        peer = lead.get(TUNED, base) if is_fine_tuned(best.first) else base
        lines.append(f"The best other method, {best.name}: {_beside(best, peer)}.")
    learned = strongest(g for g in rivals if training(g.first))
    if learned is not None and learned is not best:
        lines.append(f"The best method that trains, {learned.name}: {_beside(learned, base)}.")
    if POOLED in lead:
        g = lead[POOLED]
        lines.append(f"With all rows in one place ({g.name}): {_beside(g, base)}.")
    return lines[:LINES]


def overall_verdict(results: Sequence[Result]) -> list[str]:
    """The verdict on the first setting, and one sentence on all comparisons."""
    lines, total = verdict(main_setting(groups(results))[1]), _over_all(results)
    return [*lines[: LINES - 1], total] if total else lines


def frozen_and_tuned(results: Iterable[Result]) -> list[tuple[Setting, bool, list[Group]]]:
    """The methods of each comparison; for each dataset first those on the frozen network."""
    parts = [
        (setting, tuned, [g for g in members if is_fine_tuned(g.first) == tuned])
        for setting, members in by_setting(groups(comparisons(results))).items()
        for tuned in (False, True)
    ]
    return [part for part in parts if part[2]]


def _over_all(results: Iterable[Result]) -> str:
    """How often our messages are the most accurate, and where they are furthest behind.

    A difference that rounds to 0.0 points is a tie.
    """
    gaps, rows = [], ""
    for setting, _, found in frozen_and_tuned(results):
        lead = leaders(found)
        ours = strongest(lead[kind] for kind in (*MESSAGES.values(), TUNED) if kind in lead)
        best = strongest(g for g in found if g.competes and not is_ours(g))
        if ours is not None and best is not None:
            gaps.append((round(best.A_T.mean - ours.A_T.mean, 1), best.name, setting))
            rows = " (some hold single rows)" if ours.params.get("min_group") == 1 else rows
    if len(gaps) < 2:
        return ""
    won, ties = sum(gap < 0 for gap, *_ in gaps), sum(gap == 0 for gap, *_ in gaps)
    text = (
        f"In {won} of {len(gaps)} comparisons (dataset, clients, skew of the split, network "
        f"frozen or fine-tuned) one of our messages{rows} is the most accurate federated method"
    )
    if ties:
        text += f", and in {ties} as accurate as the best other one"
    gap, name, setting = max(gaps, key=lambda g: g[0])
    if gap <= 0:
        return f"{text}."
    skew = "" if setting.beta is None else f", β = {setting.beta:g}"
    place = dataset_title(setting.dataset)
    return f"{text}. It is behind by at most {gap:.1f} points ({name} on {place}{skew})."


def _beside(g: Group, base: Group) -> str:
    """Accuracy and upload of a method, and both beside those of another one."""
    sizes = g.upload, base.upload
    times = ""
    if min(sizes) > 0:
        factor = max(sizes) / min(sizes)
        shown = f"{factor:.0f}" if factor >= 9.5 else f"{factor:.1f}"
        times = f", {shown} times {'the' if sizes[0] >= sizes[1] else 'fewer'} bytes"
    points = _than(g.A_T.mean - base.A_T.mean, base.name)
    return f"{g.A_T.mean:.1f} % with {human_bytes(g.upload)} ({points}{times})"


def _than(gap: float, name: str) -> str:
    """A difference from the accuracy of another method.

    >>> _than(-2.84, "AFL"), _than(0.5, "AFL"), _than(-0.04, "AFL")
    ('2.8 points less than AFL', '0.5 points more than AFL', 'as accurate as AFL')
    """
    if _tied(gap):
        return f"as accurate as {name}"
    return f"{abs(gap):.1f} points {'less' if gap < 0 else 'more'} than {name}"
