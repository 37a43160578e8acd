"""``fedran report DIR``: results as text, as HTML pages with figures, and as files."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from fedran.bench.report.build import load_results, make_report
from fedran.bench.report.export import export_tables, overview_tables, text_table
from fedran.bench.report.leakage import read_leakage
from fedran.bench.report.pages import experiment_name, overview_page
from fedran.bench.results.grouping import counted
from fedran.core.errors import MissingExtra, printable


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Folder with results (*.jsonl, and *.ndjson of leakage). Subfolders are included.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT", help="Folder for the pages (default: FOLDER/report).", show_default=False
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the experiment in the title (default: that of the configuration, or of "
            "FOLDER).",
            show_default=False,
        ),
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Show the first page in the web browser.")
    ] = False,
    text: Annotated[
        bool, typer.Option("--text", help="Only print the tables; write no pages.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Also write every table to this folder, as CSV and LaTeX."
        ),
    ] = None,
) -> None:
    """Print a verdict and the accuracies of all results in a folder, and write them as pages.

    The pages are HTML and open offline: an overview, one per dataset, and one per further study.
    They need the extra 'report'; the printed tables and --export do not.
    """
    results, leakage = load_results(folder), read_leakage(folder)
    name = name or experiment_name(results, folder.resolve().name)
    first = overview_page(results, name)
    typer.echo(f"{first.title}\n{first.where}\n")
    for i, line in enumerate(first.verdict, 1):
        typer.echo(f"{i}. {printable(line, 400)}")
    typer.echo()
    for table in overview_tables(results):
        typer.echo(f"{text_table(table)}\n")
    if export is not None:
        typer.echo(f"{len(export_tables(results, export, leakage))} files of tables in {export}")
    if text:
        return
    try:
        result = make_report(results, name, leakage)
    except MissingExtra as reason:
        typer.echo(f"No pages were written, because {reason}")
        return
    page = result.write(folder / "report" if out is None else out)
    typer.echo(f"{page}")
    pages, figures = counted(len(result.pages), "page"), counted(len(result.figures), "figure")
    typer.echo(f"  {pages}, {figures} as SVG and PNG")
    if open_page:
        webbrowser.open(page.resolve().as_uri())
