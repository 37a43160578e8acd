"""``fedran methods``: the methods of the benchmark and what they claim."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedran.core.errors import printable
from fedran.methods.registry import known_methods, make_method

_CLAIMS = {
    "one_round": "one round per task",
    "order_free": "order-free",
    "partition_free": "partition-free",
    "exact": "exact",
}
NOTE = (
    "order-free: the order of the clients does not matter. partition-free: it does not matter "
    "which client holds which row. exact: equals one solve over all rows. Every claim is tested. "
    "Analytic methods can follow a fine-tuning of a ViT in task 0 (docs/how-to/vit.md). "
    "--json adds the settings. REPRODUCIBILITY.md explains what was verified."
)


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all settings.")] = False,
) -> None:
    """List the methods of the benchmark with their claims, uploads and verification."""
    rows, broken = [], {}
    for key in known_methods():
        try:
            rows.append(describe_method(key))
        except Exception as error:  # a package from outside may raise anything
            broken[key] = printable(str(error))
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    console = Console(width=min(100, Console().width), highlight=False)
    for row in rows:
        claims = ", ".join(short for name, short in _CLAIMS.items() if row["claims"][name])
        console.print(f"[bold]{row['key']}[/bold]  {escape(row['name'])}, {row['family']}")
        grid = Table.grid(padding=(0, 1))
        grid.add_column(style="dim", min_width=8)
        grid.add_column(overflow="fold")
        grid.add_row("claims", claims)
        grid.add_row("sends", escape(row["sends"]))
        grid.add_row("verified", escape(row["verified"]))
        console.print(Padding(grid, (0, 0, 0, 4)))
    for key, reason in broken.items():
        console.print(escape(f"{key} cannot be loaded: {reason}"))
    console.print(f"\n{NOTE}")


def describe_method(key: str) -> dict[str, Any]:
    """Name, claims, uploads and settings of a method as plain values."""
    method = make_method(key)
    return {
        "key": key,
        "name": method.name,
        "family": method.family,
        "claims": asdict(method.claims),
        "sends": method.sends,
        "verified": method.verified,
        "settings": method.params(),
    }
