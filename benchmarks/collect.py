"""docs/results.md from the files of results/: ``python benchmarks/collect.py``."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ("accuracy", "speed", "precision")
INTRO = """# Results

*Reference. Generated from `results/` by `python benchmarks/collect.py`; never edited by hand.
Each table names the command that made it and the date.*
"""


def collected():
    """The page as text."""
    parts = [INTRO]
    for name in FILES:
        path = ROOT / "results" / f"{name}.md"
        if path.exists():
            parts.append(path.read_text().replace("# ", "## ", 1))
    return "\n".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "results.md").write_text(collected())
