"""``fedran inspect FILE``: the content of an upload, an envelope, a head or an aggregator."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedran.cli.tables import named_values
from fedran.core.errors import printable
from fedran.wire.container import unpack
from fedran.wire.describe import Description, Section, describe, describe_container
from fedran.wire.files import refusals_name_file, require_file
from fedran.wire.sizes import human_bytes
from fedran.wire.validation import FILE_LIMITS

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
    description = _describe_envelope(path) if path.suffix == ".envelope" else describe(path)
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


def _describe_envelope(path: Path) -> Description:
    """The signed statement, and the upload in the envelope. The signature is not verified."""
    from fedran.federation.protocol.messages import open_envelope

    with refusals_name_file(path):
        envelope = open_envelope(path.read_bytes(), FILE_LIMITS)
        upload = describe_container(unpack(envelope.upload, FILE_LIMITS), FILE_LIMITS)
    statement = envelope.statement
    signed: Section = {
        "federation": statement.federation,
        "site": statement.client,
        "task": statement.task,
        "members": printable(", ".join("/".join(m) for m in statement.members)) or "none",
        "bytes": path.stat().st_size,
    }
    return Description(
        f"envelope of {statement.client} for {statement.task}: {upload.title}",
        {"signed statement": signed, **upload.sections},
        {**upload.fields, "statement": asdict(statement)},
    )
