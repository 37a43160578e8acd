"""Generate docs/results.md, docs/results/*.md and docs/img/: ``python benchmarks/collect.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedran.bench.report.build import load_results
from fedran.bench.report.figures.accuracy_bytes import overview_svg
from fedran.bench.report.markdown import markdown_section, markdown_table, text
from fedran.bench.report.sections import sections, terms
from fedran.bench.report.tables.communication import largest_upload
from fedran.bench.report.tables.table import (
    NOTHING,
    Block,
    Cell,
    Table,
    beta_text,
    date_range,
    mib,
    number_columns,
    results_of,
    text_columns,
)
from fedran.bench.results.grouping import (
    Group,
    Setting,
    by_setting_and_beta,
    comparisons,
    groups,
    mean_of,
)
from fedran.bench.results.result import Result
from targets import CIFAR, VIT, VIT_VTAB, VTAB, minutes, table, vtab_note

ROOT = Path(__file__).resolve().parent.parent
COMPARISON = ("accuracy", "communication", "forgetting", "drift", "training", "provenance")
COMPARED = {
    "fedran": "FedRAN",
    "fedran-mixture": "FedRAN-mixture",
    "fedran-paper": "FedRAN-paper",
    "exact": "Exact Gram",
}
OURS = {"fedran", "fedran-mixture", "fedran-uncentred"}


@dataclass(frozen=True)
class Page:
    """A page about the results that ``keep`` selects, with some sections of the report."""

    slug: str
    title: str
    about: str
    keep: Callable[[Result], bool]
    sections: Sequence[str] = COMPARISON


def _compares(dataset: str, clients: int) -> Callable[[Result], bool]:
    """Select the comparisons of methods on a dataset; runs for their seconds have another page."""
    return lambda r: (
        (r.dataset, Setting.of(r).clients) == (dataset, clients)
        and r.study in {"accuracy", "communication", "training"}
    )


def _is_study(*names: str) -> Callable[[Result], bool]:
    return lambda r: r.study in names


PAGES = (
    Page(
        "cifar100",
        "CIFAR-100",
        "All methods on CIFAR-100, 5 tasks of 20 classes, 5 clients, at three skews.",
        _compares(CIFAR, 5),
    ),
    Page(
        "clients100",
        "CIFAR-100 with 100 clients",
        "The same tasks with 100 clients, so that each client has few rows.",
        _compares(CIFAR, 100),
    ),
    Page(
        "cifar100-vit",
        "CIFAR-100 and VTAB-50 with a ViT",
        "Analytic methods on the 192 signed features of a ViT-Ti/16, frozen or fine-tuned in task "
        "0, and methods that train its prompts or LoRA matrices.",
        lambda r: any(_compares(d, k)(r) for d in (VIT, VIT_VTAB) for k in (1, 5)),
        ("vit", *COMPARISON),
    ),
    Page(
        "vtab50",
        "VTAB-50",
        "50 classes from five image domains, 5 tasks, 5 clients, at three skews.",
        _compares(VTAB, 5),
    ),
    Page(
        "har",
        "Activity recognition",
        "Motion sensors of 8 people; each person is one client.",
        _compares("har-dsa19", 8),
    ),
    Page(
        "digits",
        "Digits",
        "The small data set of scikit-learn. This comparison runs without downloads.",
        _compares("digits", 5),
    ),
    Page(
        "labels",
        "Few labels",
        "FedRAN when only a share of the rows is labelled, with and without pseudo-labels.",
        _is_study("labels"),
        ("labels", "provenance"),
    ),
    Page(
        "rank",
        "Rank and width",
        "How rank and number of random features change accuracy and bytes.",
        _is_study("rank"),
        ("rank", "provenance"),
    ),
    Page(
        "components",
        "Components of the feature map",
        "What the projection, the non-linearity and the low-rank upload contribute.",
        _is_study("components"),
        ("components", "provenance"),
    ),
    Page(
        "runtime",
        "Runtime and speed-up",
        "Seconds per task, and FedRAN against methods that train a network.",
        _is_study("runtime", "speedup"),
        ("runtime", "provenance"),
    ),
)
BENCHMARKS = {
    "speed": "Speed and memory of the library next to NumPy and scikit-learn.",
    "federation": "Time, disk and memory of a federation server.",
    "secure": "Seconds and bytes of a secure sum, per stage, for sites and server.",
    "edge": "Accuracy and bytes when edge servers add uploads before they forward them.",
    "attacks": "What one lying site can do to the classifier, and what stops it.",
    "tabular": "The scikit-learn estimator on small tabular sets, beside other classifiers.",
    "constants": "How ridge, bits and group sizes were chosen on held-out training rows.",
}
"""Tables that scripts in benchmarks/ write to results/*.md, and what they show."""

OVERVIEW = """# Results

*Reference. This page and the pages it links to are generated from `results/` by
`python benchmarks/collect.py`. Do not edit them by hand.*

## What was measured

Each experiment is a **stream**: the classes of a dataset arrive in tasks, and the rows of each task
are divided among clients. After every task the server has one classifier for all classes seen so
far. Every method gets the same streams and, unless a table says otherwise, the same features of a
frozen backbone (EfficientNet-Lite0 for images, or a ViT-Ti/16 where the name says so). For each
run we record

- the accuracy after every task,
- the bytes that each client sends and receives, as the length of the encoded messages,
- the seconds of clients and server, and the memory.

A run is repeated with several seeds, which change the order of the classes and the split among the
clients. `fedran report results` draws all results as one HTML page with figures and with tables for
every β; the pages here show the most skewed β where a table would otherwise repeat.
"""
PICTURE = """![Accuracy after the last task against the largest upload](img/accuracy_bytes.svg)

*CIFAR-100, EfficientNet-Lite0, 5 tasks, 5 clients, β = 0.1: accuracy after the last task against
the largest upload, means over three streams.*
"""
GOALS = """## Goals of the project

Least accuracy and largest upload per setting, beside what was measured: mean and standard deviation
over the streams 1993, 7 and 11. CIFAR-100 with EfficientNet-Lite0, 5 tasks, 5 clients, β = 0.1 and
M = 8192 random features unless the row says otherwise. r is the rank of a summary. "At least 5"
means that every group of a mixture has at least 5 rows. A goal is met if the mean, rounded to one
decimal as the goal is, reaches it; "0.02 below" says how much the mean is below the goal before
rounding.
"""
WHY = """How to read this table:

- Ridge, bits and group sizes were chosen on held-out training rows ([how](results/constants.md)).
  The slope of the bits over the singular values and the margin of the pseudo-labels were first set
  on test rows. Measured again on held-out rows, slopes from 1 to 2 differ by less than 0.2 points
  and the margin in use is the best of five. The ranks are those of the goals.
- The test rows were not new. The feature maps, class-centring and mixtures had been tried on the
  same test streams before they were built, with ridge parameters picked on the test rows. The goals
  come from those trials.
- M = 32768: the goal was measured with six drawn rows per real row. We draw two.
- VTAB-50: the summary stays below its goal. {vtab_note}
- ViT-Ti and 10 % labels: A_avg stays below its goal, and A_T reaches it.
"""
HEADER = """# {title}

*Reference. {about}
Generated by `python benchmarks/collect.py`. See the [overview of all results](../results.md).*
"""


def pages() -> dict[str, str]:
    """The text of every page by its path below docs/."""
    results = load_results(ROOT / "results")
    found = {"results.md": _overview(results)}
    for page in PAGES:
        own = sections([r for r in results if page.keep(r)])
        shown = [markdown_section(s) for s in own if s.slug in page.sections and s.tables]
        header = HEADER.format(title=page.title, about=page.about)
        content = _joined(header, *shown)
        found[f"results/{page.slug}.md"] = content.replace(f"## {page.title}\n\n", "", 1)
    for name, about in BENCHMARKS.items():
        title, body = _benchmark(name)
        found[f"results/{name}.md"] = HEADER.format(title=title, about=about) + body
    return found


def _benchmark(name: str) -> tuple[str, str]:
    """Title and body of a table in results/."""
    title, body = (ROOT / "results" / f"{name}.md").read_text().split("\n", 1)
    return title.removeprefix("# "), body


def _overview(results: Sequence[Result]) -> str:
    links = [(page.title, page.slug, page.about) for page in PAGES]
    links += [(_benchmark(name)[0], name, about) for name, about in BENCHMARKS.items()]
    return _joined(
        OVERVIEW,
        PICTURE,
        markdown_table(_main_figures(results)).replace("### ", "## ", 1),
        "## All pages\n\n| page | what it shows |\n|---|---|",
        *(f"| [{title}](results/{slug}.md) | {about} |" for title, slug, about in links),
        GOALS,
        "\n".join(table(results)),
        WHY.format(vtab_note=vtab_note(results)),
        "Computed by `python benchmarks/collect.py` from results of " + date_range(results) + ".",
        "## Time\n",
        "\n".join(minutes(results)),
    )


def _joined(*parts: str) -> str:
    """The parts with blank lines between them, and the terms that they use."""
    content = "\n\n".join(part.strip("\n") for part in parts).replace("|\n\n|", "|\n|")
    lines = [f"- {term}: {text(meaning)}" for term, meaning in terms(content).items()]
    return "\n".join([content, "", "## Terms", "", *lines, ""])


def _main_figures(results: Sequence[Result]) -> Table:
    """Our messages, two references and the best other method at every setting and beta."""
    blocks: list[Block] = []
    used = []
    kept = [r for r in comparisons(results) if r.study == "accuracy" or r.key not in COMPARED]
    for (setting, beta), members in by_setting_and_beta(groups(kept)).items():
        chosen = [_best(g for g in members if g.key == key) for key in COMPARED]
        best = _best(g for g in members if g.competes and g.key not in {*COMPARED, *OURS})
        row = [Cell(setting.title), Cell(beta_text(beta))]
        row += [Cell(_accuracy_and_size(g)) for g in chosen]
        row += [Cell(f"{best.name}: {_accuracy_and_size(best)}" if best else NOTHING)]
        if not blocks or blocks[-1][0][0] != row[0]:
            blocks.append([])
        blocks[-1] = [*blocks[-1], row]
        used += [g for g in (*chosen, best) if g]
    columns = [
        *text_columns("setting", "β"),
        *number_columns(*COMPARED.values()),
        *text_columns("best other method"),
    ]
    note = (
        "Accuracy in percent after the last task (A_T), mean over seeds, and in parentheses the "
        "largest upload of any client in any task in MiB. FedRAN and FedRAN-mixture are the two "
        "messages of this package, FedRAN with M = 8192 random features and mixtures with 16384 "
        "(digits: 1024). FedRAN-paper is our implementation of the paper's algorithm as printed. "
        "Exact Gram sends the Gram matrix of FedRAN's random features without compression. Where "
        "a method ran with several settings, the most accurate is shown. The last column shows the "
        "most accurate of the other methods."
    )
    return Table("Main figures", columns, blocks, note, results_of(used))


def _accuracy_and_size(g: Group | None) -> str:
    return f"{_final_accuracy(g):.2f} ({mib(largest_upload(g))})" if g else NOTHING


def _best(found: Iterable[Group]) -> Group | None:
    return max(found, key=_final_accuracy, default=None)


def _final_accuracy(g: Group) -> float:
    return mean_of(g.stat(lambda r: r.A_T)) or 0.0


def images() -> dict[str, str]:
    """The figures by their path below docs/; they need matplotlib."""
    return {"img/accuracy_bytes.svg": overview_svg(load_results(ROOT / "results"))}


if __name__ == "__main__":
    for path, content in {**pages(), **images()}.items():
        file = ROOT / "docs" / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
