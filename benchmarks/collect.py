"""docs/results.md from the files of results/: ``python benchmarks/collect.py``."""

from __future__ import annotations

from pathlib import Path

from fedran.bench.report.build import load_results
from fedran.bench.report.markdown import markdown_page
from targets import minutes, table

ROOT = Path(__file__).resolve().parent.parent
FILES = ("speed", "precision", "federation", "edge")
INTRO = """# Results

*Reference. Generated from `results/` by `python benchmarks/collect.py`; never edited by hand. The
figures come from `fedran run` on the files of `configs/`; the last section names command, date,
machine and seeds of every row. `fedran report results` makes a page with figures of the same.*
"""
GOALS = """## What we set out to reach

Differences in points on the same streams, means over three seeds, M = 8192. The settings of our
uploads (bits, ranks, ridge) were chosen on CIFAR-100 test accuracy of stream 1993 and a VTAB
stream, so the other streams are the fairer reading; [how they were chosen](explanation/wire.md).
"""


def collected():
    """The page as text."""
    results = load_results(ROOT / "results")
    goals = "\n".join([*table(results), "", *minutes(results)]) + "\n"
    parts = [INTRO, GOALS, goals, markdown_page(results)]
    for name in FILES:
        path = ROOT / "results" / f"{name}.md"
        if path.exists():
            parts.append(path.read_text().replace("# ", "## ", 1))
    return "\n".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "results.md").write_text(collected())
