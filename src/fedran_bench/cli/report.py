"""``fedran bench report DIR``: results as text, as HTML pages with figures, and as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedran.core.errors import MissingExtra, printable
from fedran_bench.report.export import export_tables, text_table, update_markdown
from fedran_bench.report.figures import overview_svg
from fedran_bench.report.pages import experiment_name, load_results, make_pages, make_report
from fedran_bench.report.verdict import main_setting
from fedran_bench.results.grouping import comparisons, counted, groups


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder with *.jsonl, or above.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Folder for the pages; else FOLDER/report.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Title; else the name of the configuration or of FOLDER."
        ),
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Only print the tables; write no pages.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also write every table there, as CSV and LaTeX."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also update this Markdown page and img/accuracy_bytes.svg beside it.",
        ),
    ] = None,
) -> None:
    """Print a verdict and the accuracies of all results in a folder, and write them as pages.

    The pages are HTML and open offline: one per dataset, and one that compares
    them if there are several. They need the extra 'bench'; the printed tables
    and --export do not.
    """
    results = load_results(folder)
    name = name or experiment_name(results, folder.resolve().name)
    pages = make_pages(results, name)
    first = pages[0].sections[0]
    typer.echo(f"{pages[0].title}\n{first.about}\n")
    for i, line in enumerate(first.verdict, 1):
        typer.echo(f"{i}. {printable(line, 400)}")
    typer.echo()
    for shown in pages if len(pages) == 1 else pages[1:]:
        if shown is not pages[0]:
            typer.echo(f"{printable(shown.title, 200)}\n")
        for table in (t for s in shown.sections for t in s.tables):
            typer.echo(f"{text_table(table.brief())}\n")
    if export is not None:
        number = counted(export_tables(pages, export), "table")
        typer.echo(f"{export}\n  {number} as CSV and LaTeX")
    if page is not None:
        update_markdown(page, pages, results)
        drawing = overview_svg(*main_setting(groups(comparisons(results))))
        (page.parent / "img" / "accuracy_bytes.svg").write_text(drawing, encoding="utf-8")
    if text:
        return
    try:
        made = make_report(results, name)
    except MissingExtra as reason:
        typer.echo(f"No pages were written, because {reason}")
        return
    path = made.write(folder / "report" if out is None else out)
    typer.echo(f"{path}")
    typer.echo(f"  {counted(len(made.pages), 'page')}, {counted(len(made.figures), 'figure')}")
