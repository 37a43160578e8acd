"""``fedran inspect FILE``: the content of an upload, an envelope, a head or an aggregator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedran.cli.tables import named_values
from fedran.wire.describe import describe
from fedran.wire.files import require_file
from fedran.wire.sizes import human_bytes

NOTE = (
    "eps_G and eps_B bound the errors of truncation and quantisation. At common ranks and few "
    "bits, the resulting bound on the weights certifies no prediction. It is a diagnosis, not a "
    "guarantee."
)


def inspect(
    file: Annotated[
        Path, typer.Argument(help="An upload, an envelope, a head or a saved aggregator.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the header as JSON.")] = False,
) -> None:
    """Show the content of a file: sizes, classes, accounts, fingerprint."""
    path = require_file(file, "an upload, an envelope, a head or a saved aggregator")
    if path.suffix == ".envelope":
        from fedran.federation.protocol.describe import describe_envelope

        description = describe_envelope(path)
    else:
        description = describe(path)
    if as_json:
        typer.echo(json.dumps(description.fields, indent=2))
        return
    console = Console(highlight=False)
    console.print(f"[bold]{escape(description.title)}[/bold]")
    for title, section in description.sections.items():
        rows = []
        for name, value in section.items():
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            if name == "bytes" and isinstance(value, int):
                text = f"{value} ({human_bytes(value)})"
            rows.append((name, text))
        console.print(f"\n[bold]{escape(title)}[/bold]")
        console.print(named_values(rows))
    if "accounts" in description.sections:
        console.print(f"\n[dim]{NOTE}[/dim]")
