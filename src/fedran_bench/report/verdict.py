"""Who leads: the best method of each kind, and the verdict in at most six lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedran.data.catalogue import dataset_title
from fedran.wire.sizes import human_bytes
from fedran_bench.results.grouping import (
    Group,
    Setting,
    by_setting,
    comparisons,
    counted,
    groups,
    is_fine_tuned,
    is_head,
    is_ours,
    is_prompted,
    is_trained,
)
from fedran_bench.results.result import DEFAULT_STUDY, Result

LINES = 6
"""Sentences of a verdict."""
OURS, MIXTURE, TUNED = "FedRAN", "FedRAN-mixture", "FedRAN, network fine-tuned in task 0"
PAPER = "FedRAN (paper)"
ANALYTIC = "best other method without training"
HEAD = "best trained head on the features"
PROMPTS = "best prompt or LoRA method"
NETWORK = "best network from scratch"
POOLED = "all rows in one place"
ROLES = (OURS, MIXTURE, TUNED, ANALYTIC, HEAD, PROMPTS, NETWORK, POOLED, PAPER)
"""Every kind of method that has a leader; the most important first."""

NAMED = (
    *("fedran-paper", "stsa", "afl", "fedcgs", "gh-ofl-lda", "fedpft", "fedncm"),
    *("loranpac", "ranpac", "send-features-8bit", "send-images"),
)
"""Methods that readers look for. Figures and short tables name them besides the leaders."""


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
    """The best method of each kind.

    Runs that only vary the size of our messages do not lead.
    """
    best: dict[str, Group] = {}
    for g in found:
        kind = role(g)
        if kind and (kind not in best or _strength(g) > _strength(best[kind])):
            best[kind] = g
    return {kind: best[kind] for kind in ROLES if kind in best}


def strongest(found: Iterable[Group]) -> Group | None:
    """The best method; ours at their usual sizes before those that only vary the size."""
    return max(found, key=_strength, default=None)


def _strength(g: Group) -> tuple[bool, float, int]:
    """The most accurate is best. Of those that print the same accuracy it is the smallest."""
    return not is_ours(g) or g.first.study == DEFAULT_STUDY, round(g.A_T.mean, 1), -g.upload


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
    tasks, clients = counted(setting.tasks, "task"), counted(setting.clients, "client")
    title = dataset_title(setting.dataset)
    return f"{title}: {classes} classes in {tasks}, {clients}{labels}{skew}"


def quoted(g: Group) -> str:
    """The name of a method; a mixture says how many rows each of its groups has at least.

    Fewer rows per group make a mixture more accurate and less private.
    """
    least = g.params.get("min_group") if "mixture" in g.key else None
    if least is None:
        return g.name
    name = g.name.removesuffix(f", at least {least}")
    return f"{name}, at least {counted(int(least), 'row')} per group"


def verdict(found: Sequence[Group]) -> list[str]:
    """What the methods of one setting achieve, in at most six sentences."""
    lead = leaders(found)
    ours = next((lead[kind] for kind in (OURS, MIXTURE, TUNED) if kind in lead), None)
    base = ours or max(found, key=lambda g: (g.competes, _strength(g)))
    lines = [
        f"{quoted(base)} classifies {base.A_T.mean:.1f} % of the test rows correctly after the "
        f"last task. No client uploads more than {human_bytes(base.upload)} in a task."
    ]
    for kind, what in (
        (MIXTURE, "our message for small budgets"),
        (TUNED, "after its clients have trained adapters of the network in the first task"),
    ):
        if kind in lead and lead[kind] is not base:
            g = lead[kind]
            lines.append(f"{quoted(g)} ({what}): {g.A_T.mean:.1f} % with {human_bytes(g.upload)}.")
    rivals = [g for g in found if g.competes and not is_ours(g) and g is not base]
    if ours is None and not rivals:  # variants of one method
        others = (g for g in found if g.competes and g is not base)
        lines += [f"{g.name}: {g.A_T.mean:.1f} % with {human_bytes(g.upload)}." for g in others]
    best = strongest(rivals)
    if best is not None:
        # A method on a fine-tuned network is compared with ours on such a network.
        peer = lead.get(TUNED, base) if is_fine_tuned(best.first) else base
        lines.append(f"The best other method, {best.name}: {_beside(best, peer)}.")
    learned = strongest(g for g in rivals if is_trained(g.first))
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
    gaps = []
    for setting, _, found in frozen_and_tuned(results):
        lead = leaders(found)
        ours = [lead[kind].A_T.mean for kind in (OURS, MIXTURE, TUNED) if kind in lead]
        rivals = [g for g in found if g.competes and not is_ours(g)]
        if ours and rivals:
            best = max(rivals, key=lambda g: g.A_T.mean)
            gaps.append((round(best.A_T.mean - max(ours), 1), best.name, setting))
    if len(gaps) < 2:
        return ""
    won, ties = sum(gap < 0 for gap, *_ in gaps), sum(gap == 0 for gap, *_ in gaps)
    text = (
        f"In {won} of {len(gaps)} comparisons (dataset, clients, skew of the split, network "
        "frozen or fine-tuned) one of our messages is the most accurate federated method"
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
    if round(abs(gap), 1) == 0.0:
        return f"as accurate as {name}"
    return f"{abs(gap):.1f} points {'less' if gap < 0 else 'more'} than {name}"
