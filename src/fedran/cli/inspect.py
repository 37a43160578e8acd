"""``fedran inspect FILE``: what is in an upload, an aggregator or a head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedran.wire.describe import describe
from fedran.wire.sizes import human_bytes

NOTE = (
    "eps_G and eps_B bound truncation and quantisation. At common ranks and few bits the bound "
    "on the weights that follows certifies no prediction: read it as a diagnosis, not a promise."
)


def inspect(
    file: Annotated[Path, typer.Argument(help="An upload, a head or a saved aggregator.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the header as JSON.")] = False,
) -> None:
    """What is in a file: sizes, classes, ranks, accounts, fingerprint."""
    if not file.is_file():
        raise ValueError(f"{file}: {'this is a folder' if file.is_dir() else 'no such file'}")
    description = describe(file)
    if as_json:
        typer.echo(json.dumps(description.fields, indent=2))
        return
    console = Console()
    console.print(f"[bold]{escape(description.title)}[/bold]", highlight=False)
    for title, section in description.sections.items():
        table = Table(show_header=False, show_edge=False, pad_edge=False, box=None)
        table.add_column(min_width=24)
        table.add_column(overflow="fold")
        for name, value in section.items():
            table.add_row(escape(name), escape(_shown(name, value)))
        console.print(f"\n[bold]{escape(title)}[/bold]")
        console.print(table, highlight=False)
    if "accounts" in description.sections:
        console.print(f"\n[dim]{NOTE}[/dim]", highlight=False)


def _shown(name: str, value: object) -> str:
    if name == "bytes" and isinstance(value, int):
        return f"{value} ({human_bytes(value)})"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
