"""Run the scripts of docs/gallery and write their pages: ``python benchmarks/gallery.py``.

Names of scripts as arguments select some of them. A script is plain Python in cells: ``# %%``
starts code, ``# %% [markdown]`` starts text in comments. Notebook editors open it as a notebook.
Its page has the text, the code, what the code printed, and one figure per ``plt.show()``. Every
script runs in an empty folder.
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

GALLERY = Path(__file__).resolve().parent.parent / "docs" / "gallery"
EXTRAS = {
    "digits": "bench",
    "own_images": "images,bench",
    "federation": "flower,bench",
    "few_labels": "bench",
    "removing_a_site": "bench",
    "byte_budget": "bench",
}
"""The scripts in the order of the index, and the extras that each needs."""
ORDER = tuple(EXTRAS)
STYLE = {
    "figure.figsize": (6.4, 3.4),
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.prop_cycle": mpl.cycler(color=["#d9480f", "#2b7fd4", "#2f9e44", "#9c5fd6"]),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dcdee0",
    "lines.marker": "o",
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "gallery",
}


@dataclass(frozen=True)
class Script:
    """The parts of a script: title, introduction, and cells of text and code in their order."""

    name: str
    title: str
    introduction: str
    cells: tuple[tuple[str, str], ...]
    """("text" or "code", source)."""


@dataclass(frozen=True)
class Page:
    """What a script gave."""

    markdown: str
    outputs: tuple[str, ...]
    """What each code cell printed."""
    figures: dict[str, str]
    """Name of the file -> SVG."""


def read_script(name: str) -> Script:
    """Split docs/gallery/NAME.py into its cells."""
    source = (GALLERY / f"{name}.py").read_text()
    head, *parts = re.split(r"^# %%", source, flags=re.M)
    title, _, introduction = (ast.get_docstring(ast.parse(head)) or "").partition("\n")
    cells = []
    for part in parts:
        kind, _, body = part.partition("\n")
        if kind.strip() == "[markdown]":
            cells.append(("text", re.sub(r"^# ?", "", body, flags=re.M).strip()))
        else:
            cells.append(("code", body.strip()))
    return Script(name, title.strip().rstrip("."), introduction.strip(), tuple(cells))


def run_script(script: Script) -> Page:
    """Run the code cells one after the other and write down what they show."""
    lines = [
        f"# {script.title}",
        f"*Gallery. Made by `python benchmarks/gallery.py {script.name}`, which ran "
        f"[this script]({script.name}.py). It needs `pip install '.[{EXTRAS[script.name]}]'`.*",
        script.introduction,
    ]
    outputs: list[str] = []
    figures: dict[str, str] = {}
    shown: list[str] = []

    def show() -> None:
        file = f"{script.name}-{len(figures) + 1}.svg"
        figure, text = plt.gcf(), io.StringIO()
        title = figure.get_suptitle() or figure.axes[0].get_title()
        figure.savefig(text, format="svg", metadata={"Date": None}, facecolor="white")
        plt.close(figure)
        figures[file] = re.sub(r"[ \t]+$", "", text.getvalue(), flags=re.M)
        shown.append(f"![{title}](img/{file})")

    namespace: dict[str, Any] = {"__name__": "__main__"}
    before = plt.show
    with tempfile.TemporaryDirectory() as folder, chdir(folder), mpl.rc_context():
        mpl.use("agg")
        mpl.rcParams.update(STYLE)
        plt.show = show
        try:
            for kind, source in script.cells:
                if kind == "text":
                    lines.append(source)
                    continue
                printed = io.StringIO()
                with redirect_stdout(printed):
                    exec(compile(source, f"{script.name}.py", "exec"), namespace)
                said = printed.getvalue().rstrip().replace(folder, "/home/me")
                outputs.append(re.sub(r" +$", "", said, flags=re.M))
                lines.append(f"```python\n{source}\n```")
                lines += [f"```text\n{outputs[-1]}\n```"] if outputs[-1] else []
                lines += shown
                shown.clear()
        finally:
            plt.show = before
    return Page("\n\n".join(lines) + "\n", tuple(outputs), figures)


def index() -> str:
    """The page that lists all scripts, each with its first figure."""
    lines = [
        "# Gallery",
        "*Each page is a script of about fifty lines with everything that it printed and drew. "
        "All of them run on a laptop without a network, most in seconds. "
        "`python benchmarks/gallery.py` runs them again and writes these pages.*",
        '<div class="grid cards" markdown>',
    ]
    for name in ORDER:
        script = read_script(name)
        first = " ".join(script.introduction.split("\n\n")[0].split())
        lines.append(
            f"-   [![{script.title}](img/{name}-1.svg)]({name}.md)\n\n"
            f"    **[{script.title}]({name}.md)**\n\n    {first}"
        )
    return "\n\n".join([*lines, "</div>"]) + "\n"


def main(names: list[str]) -> None:
    """Run the named scripts, by default all, and write pages, figures and the index."""
    (GALLERY / "img").mkdir(exist_ok=True)
    for name in names or ORDER:
        page = run_script(read_script(name))
        for old in (GALLERY / "img").glob(f"{name}-[0-9].svg"):
            old.unlink()
        for file, svg in page.figures.items():
            (GALLERY / "img" / file).write_text(svg)
        (GALLERY / f"{name}.md").write_text(page.markdown)
        print(f"{name}: {len(page.outputs)} cells, {len(page.figures)} figures")
    (GALLERY / "index.md").write_text(index())


if __name__ == "__main__":
    # The command `fedran` of this environment; output of fixed width.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ.update(OMP_NUM_THREADS="1", COLUMNS="78")
    main(sys.argv[1:])
