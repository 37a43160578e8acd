"""The comparison on a Vision Transformer: the cost of each method, the paper's table beside ours.

The paper's backbone is a ViT-B/16. With a smaller one its table is context for the order of the
methods and not a figure to reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from fedran.bench.report.paper import BETAS, VIT, Printed, paper_method, printed_for, vit_backbone
from fedran.bench.report.tables.table import (
    NOT_RUN,
    NOTHING,
    Block,
    Cell,
    Column,
    Shown,
    Table,
    mean_and_spread,
    method_table,
    mib,
    one_per_setting,
    ratio,
    results_of,
    seconds,
    seeds_note,
    seeds_per_group,
    text_columns,
    times,
)
from fedran.bench.results.grouping import (
    Case,
    Group,
    Setting,
    by_setting,
    cases,
    comparisons,
    group_of,
    groups,
    machine_of,
    row_order,
    without_ablations,
)
from fedran.bench.results.metrics import (
    is_fine_tuned,
    is_prompted,
    rounds_per_task,
    seconds_with_forward_pass,
    task_seconds,
    total_download,
    total_upload,
)
from fedran.bench.results.result import Result

Measure = Callable[[Result], float | None]
OURS = ("fedran", "fedran-mixture")
"""FedRAN's two messages."""
NOT_PRINTED = ("fedran-mixture", "exact", "lorm")
"""Methods beside the paper's: our other message, the exact sums, and a LoRA method."""
TUNED = "fine-tuned in task 0"
VARIANTS = {
    "Fed-DualP": "Fed-DualPrompt (as published)",
    "Fed-CPrompt": "Fed-CPrompt (as published)",
    "PiLoRA": "PILoRA (as published)",
    "STSA": f"STSA ({TUNED})",
    "FedRAN": f"FedRAN ({TUNED})",
}
"""For rows of the paper: a second run of ours, which has a row even if it was not made."""


def cost_tables(results: Sequence[Result]) -> list[Table]:
    """Accuracy, seconds and bytes of FedRAN and of all prompt and LoRA methods.

    One table per setting and beta with such a method. Only runs on its streams count.
    """
    runs = without_ablations(results)
    streams = {r.hashes["stream"] for r in runs if is_prompted(r)}
    shown = [r for r in runs if r.hashes["stream"] in streams and (is_prompted(r) or r.key in OURS)]
    found_at = cases(shown, by_machine=True)
    return one_per_setting(
        (setting, _cost_table(setting, beta, _best_timed(found)))
        for (setting, beta), found in found_at.items()
        if any(is_prompted(g.first) for g in found)
    )


def _best_timed(found: Iterable[Group]) -> list[Group]:
    """One group per method: alone on its machine if possible, and on the machine of the others."""
    members = list(found)
    usual = Counter(g.first.machine for g in members if is_prompted(g.first)).most_common(1)[0][0]
    best: dict[str, Group] = {}
    for g in sorted(members, key=lambda g: (g.first.side_by_side > 1, g.first.machine != usual)):
        best.setdefault(g.name, g)
    return sorted(best.values(), key=lambda g: (row_order(g), g.key not in OURS))


def _cost_table(setting: Setting, beta: float | None, found: Sequence[Group]) -> Table:
    several = len({machine_of(g.first) for g in found}) > 1
    ours = group_of("fedran", found)
    timed = ours is not None and ours.mean(seconds_with_forward_pass) is not None
    whole = seconds_with_forward_pass if timed else task_seconds

    def in_seconds(measure: Measure) -> Callable[[Group], Cell]:
        return lambda g: Cell(seconds(g.mean(measure)))

    def in_mib(measure: Measure) -> Callable[[Group], Cell]:
        return lambda g: Cell(mib(g.mean(measure)))

    def beside_ours(measure: Measure) -> Callable[[Group], Cell]:
        base = ours.mean(measure) if ours else None
        return lambda g: Cell(times(ratio(g.mean(measure), base)))

    per_client = "MiB per client"
    shown: list[Shown] = [
        (Column("A_avg"), lambda g: mean_and_spread(g.A_avg)),
        (Column("A_T"), lambda g: mean_and_spread(g.A_T)),
        (Column("rounds per task"), lambda g: Cell(_rounds(g.first))),
        (Column("Time", "seconds"), in_seconds(task_seconds)),
        (Column("with forward pass", "seconds"), in_seconds(seconds_with_forward_pass)),
        (Column("ratio to FedRAN", "seconds"), beside_ours(whole)),
        (Column("largest upload", per_client), lambda g: Cell(mib(g.largest_upload))),
        (Column("sent", per_client), in_mib(_sent_per_client)),
        (Column("received", per_client), in_mib(_received_per_client)),
        (Column("sent, ratio to FedRAN", per_client), beside_ours(_sent_per_client)),
    ]
    if several:
        shown.append((Column("machine", numeric=False), lambda g: Cell(machine_of(g.first))))
    shared = [g.name for g in found if g.first.side_by_side > 1]
    untimed = "without its forward pass, which was not timed in these runs"
    forward = "with its forward pass" if timed else untimed
    note = [
        seeds_note(seeds_per_group(found)),
        "All rows use the same streams. Time is client plus server of one task, mean over tasks. "
        "Methods that train have the forward passes of the network in it. FedRAN on frozen "
        f"features needs one forward pass per row; its seconds are compared {forward}. Sent and "
        "received are sums over all tasks, mean over clients.",
    ]
    if not several:
        note.append(f"Machine: {machine_of(found[0].first)}.")
    if len({g.first.machine for g in found}) > 1:
        note.append("Times from different machines cannot be compared.")
    if shared:
        names = "; ".join(shared)
        note.append(f"Runs that shared the machine, so that seconds are only indicative: {names}.")
    return method_table(f"Cost: {Case(setting, beta).title}", found, shown, " ".join(note))


def _rounds(result: Result) -> str:
    """Rounds per task; a fine-tuning in task 0 has more of them there."""
    if not is_fine_tuned(result) or len(result.tasks) == 1:
        return str(rounds_per_task(result))
    return f"{result.tasks[0].rounds}, then {result.tasks[1].rounds}"


def _sent_per_client(result: Result) -> float:
    return total_upload(result) / len(result.tasks[0].bytes_up)


def _received_per_client(result: Result) -> float:
    return total_download(result) / len(result.tasks[0].bytes_down)


def printed_vit_tables(results: Sequence[Result]) -> list[Table]:
    """The paper's ViT table with our runs beside the printed figures, for each of its datasets."""
    settings = by_setting(groups(r for r in comparisons(results) if vit_backbone(r.dataset)))
    found = [
        (paper, members, vit_backbone(setting.dataset))
        for setting, members in settings.items()
        if (paper := printed_for(setting)) is not None and paper.accuracy is VIT
    ]
    missing = sorted(set(VIT["FedRAN"]) - {paper.dataset for paper, _, _ in found})
    rest = f" Not run: the paper's figures on {', '.join(missing)}." if missing else ""
    return [_beside(*case, rest) for case in found]


def _beside(paper: Printed, members: Sequence[Group], backbone: str, rest: str) -> Table:
    found = [g for g in members if g.beta in BETAS]
    blocks: list[Block] = []
    for method in paper.accuracy:
        names = _names(g for g in found if _printed_as(g) == method)
        variant = VARIANTS.get(method, "")
        if names and not any(name.startswith(variant) for name in names):
            names.append(variant)
        printed = [_pair(paper.pair(method, beta), muted=True) for beta in BETAS]
        blocks.append(_block(method, names or [NOTHING], found, printed))
    others = _names(g for g in found if g.key in NOT_PRINTED)
    if others:
        nothing = [Cell(NOTHING, muted=True)] * len(BETAS)
        blocks.append(_block("not in the paper", others, found, nothing))
    columns = [Column("paper", numeric=False, muted=True), *text_columns("ours")]
    for beta in BETAS:
        columns += [Column("printed", f"β = {beta:g}", muted=True), Column("ours", f"β = {beta:g}")]
    used = [g for g in found if _printed_as(g) in paper.accuracy or g.key in NOT_PRINTED]
    note = (
        f"A_avg / A_T in percent. Printed: {paper.backbone}, copied from the paper. "
        f"Ours: {_our_backbone(backbone, paper)} The paper fine-tunes its ViT in task 0 for STSA "
        f'and FedRAN; our rows without "{TUNED}" use the frozen network. The STSA that it runs is '
        f"STSA-E, as its byte counts show. {seeds_note(seeds_per_group(used), 'Means')}{rest}"
    )
    title = f"The paper's ViT table and ours: {paper.dataset}, 10 tasks, 5 clients"
    return Table(title, columns, blocks, note, results_of(used))


def _our_backbone(backbone: str, paper: Printed) -> str:
    if backbone == paper.backbone:
        return f"{backbone} too, with the weights that the result lines name."
    return (
        f"{backbone}, another backbone, so only the order of the methods and the distances between "
        "them can be compared."
    )


def _names(found: Iterable[Group]) -> list[str]:
    return list(dict.fromkeys(g.name for g in sorted(found, key=row_order)))


def _block(
    method: str, names: Sequence[str], found: Sequence[Group], printed: Sequence[Cell]
) -> Block:
    """One row per run of ours; the printed figures stand in the first row."""
    block = []
    for i, name in enumerate(names):
        cells = [Cell(method, muted=True), Cell(name)]
        for beta, theirs in zip(BETAS, printed, strict=True):
            g = next((g for g in found if (g.name, g.beta) == (name, beta)), None)
            ours = (g.A_avg.mean, g.A_T.mean) if g else None
            cells += [Cell("", muted=True) if i else theirs, _pair(ours)]
        block.append(cells)
    return block


def _printed_as(g: Group) -> str | None:
    """The paper's row that a run stands beside. The paper's STSA is STSA-E; exact STSA joins it."""
    return "STSA" if g.key == "stsa" else paper_method(g.key)


def _pair(pair: tuple[float | None, float | None] | None, muted: bool = False) -> Cell:
    if pair is None or pair[0] is None or pair[1] is None:
        return Cell(NOTHING if muted else NOT_RUN, muted=True)
    return Cell(f"{pair[0]:.2f} / {pair[1]:.2f}", muted=muted)
