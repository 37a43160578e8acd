"""``fedran methods``: every method of the benchmark."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedran.methods.registry import METHODS, make_method

_CLAIMS = {
    "one_round": "one round a task",
    "order_free": "order-free",
    "partition_free": "partition-free",
    "exact": "exact",
}
NOTE = (
    "order-free: the order of clients does not matter; partition-free: nor does who holds which "
    "row; exact: equals a joint solve. Each claim is tested. --json adds the settings; "
    "REPRODUCIBILITY.md says more about what was verified."
)


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with settings.")] = False,
) -> None:
    """The methods of the benchmark: family, claims, what is sent, whether verified."""
    rows = [_row(key) for key in METHODS]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    console = Console(width=min(100, Console().width))
    for row in rows:
        claims = ", ".join(short for name, short in _CLAIMS.items() if row["claims"][name])
        console.print(
            f"[bold]{row['key']}[/bold]  {escape(row['name'])}, {row['family']}", highlight=False
        )
        grid = Table.grid(padding=(0, 1))
        grid.add_column(style="dim", min_width=8)
        grid.add_column(overflow="fold")
        for name, text in (
            ("claims", claims),
            ("sends", row["sends"]),
            ("verified", row["verified"]),
        ):
            grid.add_row(name, escape(text))
        console.print(Padding(grid, (0, 0, 0, 4)))
    console.print(f"\n{NOTE}", highlight=False)


def _row(key: str) -> dict[str, Any]:
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
