"""``fedran report DIR``: results as one page and figures."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from fedran.bench.report.build import load_results, make_report


def report(
    folder: Annotated[Path, typer.Argument(help="Where the results are: every *.jsonl below it.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write (default: DIR/report).", show_default=False)
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Show the page in the web browser.")
    ] = False,
) -> None:
    """Tables and figures of all results below a folder, as one page that opens offline."""
    made = make_report(load_results(folder))
    page = made.write(folder / "report" if out is None else out)
    typer.echo(f"{page}")
    for name in made.figures:
        typer.echo(f"  figures/{name}.svg and .png")
    if open_page:
        webbrowser.open(page.resolve().as_uri())
