"""Who leads: the best method of each kind, the verdict in at most five lines, and its table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fedran.bench.report.ablations import component_studies, label_studies, rank_studies
from fedran.bench.report.tables.communication import largest_upload
from fedran.bench.report.tables.table import (
    MIB,
    NOTHING,
    Block,
    Cell,
    Table,
    beta_text,
    mib,
    number_columns,
    results_of,
    seconds,
    text_columns,
)
from fedran.bench.results.grouping import (
    Group,
    Setting,
    by_setting_and_beta,
    comparison_cases,
    groups,
    is_ours,
)
from fedran.bench.results.metrics import (
    is_fine_tuned,
    is_head,
    is_prompted,
    is_trained,
    task_seconds,
)
from fedran.bench.results.result import DEFAULT_STUDY, Result
from fedran.data.catalogue import dataset_title

LINES = 5
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
COMPARED = {
    "fedran": OURS,
    "fedran-mixture": MIXTURE,
    "fedran-paper": "FedRAN-paper",
    "exact": "Exact Gram",
}
"""Columns of the table of all comparisons, before the best other method."""
Case = tuple[Setting, float | None]


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
    return (setting, beta), cases[setting, beta]


def verdict(found: Sequence[Group]) -> list[str]:
    """What the methods of one setting and beta achieve, in at most five sentences."""
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
        lines.append(
            f"With all rows in one place ({g.name}): {g.A_T.mean:.1f} %, "
            f"{_than(g.A_T.mean - base.A_T.mean, base.name)}."
        )
    return lines[:LINES]


def overall_verdict(results: Sequence[Result]) -> list[str]:
    """The verdict on the first setting, and one sentence on all comparisons."""
    first = main_case(results)
    if first is None:
        return []
    lines, total = verdict(first[1]), _over_all(results)
    return [*lines[: LINES - 1], total] if total else lines


def _over_all(results: Iterable[Result]) -> str:
    """How often our messages are the most accurate, and where they are furthest behind."""
    gaps = []
    for (setting, beta), found in comparison_cases(results).items():
        lead = leaders(found)
        ours = [lead[kind].A_T.mean for kind in (OURS, MIXTURE, TUNED) if kind in lead]
        rivals = [g for g in found if g.competes and not is_ours(g)]
        if ours and rivals:
            best = max(rivals, key=_final)
            gaps.append((best.A_T.mean - max(ours), best.name, setting.dataset, beta))
    if len(gaps) < 2:
        return ""
    won = sum(gap <= 0 for gap, *_ in gaps)
    text = (
        f"In {won} of {len(gaps)} comparisons (dataset, clients, skew of the split) one of our "
        "messages is the most accurate federated method"
    )
    gap, name, dataset, beta = max(gaps, key=lambda g: g[0])
    if gap <= 0:
        return f"{text}."
    skew = "" if beta is None else f", β = {beta:g}"
    where = dataset_title(dataset)
    return f"{text}. It is behind by at most {gap:.1f} points ({name} on {where}{skew})."


def study_verdict(results: Sequence[Result]) -> list[str]:
    """What the runs of a study with a page of its own show, in at most five sentences."""
    lines = []
    for labels in label_studies(results):
        for name, line in labels.lines.items():
            rate, least = min(line.items())
            lines.append(
                f"{name.capitalize()}: {least.A_avg.mean:.1f} % accuracy, mean over tasks, with "
                f"{100 * rate:g} % of the labels; {line[max(line)].A_avg.mean:.1f} % with "
                f"{100 * max(line):g} %."
            )
    for ranks in rank_studies(results):
        width, by_rank = max(ranks.lines.items())
        ends = [
            f"{g.A_avg.mean:.1f} % with {_size(g)} at rank {rank}"
            for rank, g in (min(by_rank.items()), max(by_rank.items()))
        ]
        name = ranks.title.partition(";")[0]
        lines.append(f"{name} with {width} random features: {ends[0]}, {ends[1]}.")
    for steps in component_studies(results):
        rule = {step: next(iter(row.values())).A_avg.mean for (_, step), row in steps.bars.items()}
        first, best = next(iter(rule)), max(rule, key=lambda step: rule[step])
        lines.append(
            f"{dataset_title(steps.dataset)}, {steps.lams[0]}: {rule[first]:.1f} % with {first}, "
            f"at best {rule[best]:.1f} % with {best}."
        )
    timed = [r for r in results if r.study == "speedup" and r.side_by_side == 1]
    for (setting, _), found in by_setting_and_beta(groups(timed)).items():
        for g in found:
            trained = [t for t in found if is_trained(t.first)]
            if role(g) == OURS and trained:
                slow = [t.mean(task_seconds) or 0.0 for t in trained]
                ours = seconds(g.mean(task_seconds))
                lines.append(
                    f"{dataset_title(setting.dataset)}: FedRAN takes {ours} s per task, methods "
                    f"that train {seconds(min(slow))} to {seconds(max(slow))} s "
                    f"with {min(t.first.tasks[0].rounds for t in trained)} to "
                    f"{max(t.first.tasks[0].rounds for t in trained)} rounds per task."
                )
    return lines[:LINES]


def _size(g: Group) -> str:
    """The largest upload with two significant digits, in MiB like the figures or in KiB."""
    size = largest_upload(g)
    value, unit = (size / MIB, "MiB") if size >= MIB / 100 else (size / 1024, "KiB")
    return f"{value:.0f} {unit}" if value >= 99.5 else f"{value:.2g} {unit}"


def _beside(g: Group, base: Group) -> str:
    """Accuracy and upload of a method, and both beside those of another one."""
    sizes = largest_upload(g), largest_upload(base)
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


def comparison_table(results: Sequence[Result]) -> Table:
    """Our messages, two references and the best other method at every setting and beta."""
    blocks: list[Block] = []
    used: list[Group] = []
    for (setting, beta), tuned, members in _frozen_and_tuned(results):
        shown = [_best(g for g in members if g.key == key) for key in COMPARED]
        best = _best(g for g in members if g.competes and not is_ours(g))
        stage = ", network fine-tuned in task 0" if tuned else ""
        where = Cell(setting.title + stage, key=setting.key + stage)
        row = [where, Cell(beta_text(beta)), *(Cell(_pair(g)) for g in shown)]
        row += [Cell(f"{best.name}: {_pair(best)}" if best else NOTHING)]
        if not blocks or blocks[-1][0][0] != row[0]:
            blocks.append([])
        blocks[-1] = [*blocks[-1], row]
        used += [g for g in (*shown, best) if g]
    present = {g.key for g in used}
    absent = [i + 2 for i, key in enumerate(COMPARED) if key not in present]
    columns = [
        *text_columns("setting", "β"),
        *number_columns(*COMPARED.values()),
        *text_columns("best other method"),
    ]
    columns = [c for i, c in enumerate(columns) if i not in absent]
    blocks = [
        [[c for i, c in enumerate(row) if i not in absent] for row in block] for block in blocks
    ]
    note = (
        "Accuracy in percent after the last task, mean over seeds, and in parentheses the largest "
        "upload of any client in any task in MiB. Where a method ran with several settings, the "
        "most accurate is shown."
    )
    about = {
        "fedran-paper": "FedRAN-paper is our implementation of the algorithm as published.",
        "exact": "Exact Gram sends the Gram matrix of FedRAN's random features uncompressed.",
    }
    note = " ".join([note, *(text for key, text in about.items() if key in present)])
    return Table("All comparisons", columns, blocks, note, results_of(used))


def _frozen_and_tuned(results: Sequence[Result]) -> list[tuple[Case, bool, list[Group]]]:
    """The methods of each case; for each setting first those on the frozen network."""
    cases = comparison_cases(results)
    settings = list(dict.fromkeys(setting for setting, _ in cases))
    parts = [
        (case, tuned, [g for g in found if is_fine_tuned(g.first) == tuned])
        for case, found in cases.items()
        for tuned in (False, True)
    ]
    parts.sort(key=lambda part: (settings.index(part[0][0]), part[1]))
    return [part for part in parts if part[2]]


def _best(found: Iterable[Group]) -> Group | None:
    return max(found, key=_strength, default=None)


def _pair(g: Group | None) -> str:
    return f"{g.A_T.mean:.2f} ({mib(largest_upload(g))})" if g else NOTHING
