"""``fedran report DIR``: results as one HTML page and figures."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from fedran.bench.report.build import load_results, make_report


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="Folder with results (*.jsonl). Subfolders are included."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT", help="Folder for the page (default: FOLDER/report).", show_default=False
        ),
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Show the page in the web browser.")
    ] = False,
) -> None:
    """Write the tables and figures of all results in a folder as one HTML page.

    The page opens offline.
    """
    result = make_report(load_results(folder))
    page = result.write(folder / "report" if out is None else out)
    typer.echo(f"{page}")
    for name in result.figures:
        typer.echo(f"  figures/{name}.svg and .png")
    if open_page:
        webbrowser.open(page.resolve().as_uri())
