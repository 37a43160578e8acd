"""``fedran bench methods``: the methods of the benchmark and what they claim."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedran_bench.methods.registry import METHODS, make_method

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
    "REPRODUCIBILITY.md explains what was verified."
)
FLAVOURS = "Also with the errors of their published code (flavour = 'as_published'):"
NEXT = """Each line says what a client sends. Next:
  fedran bench methods fedran                                 all about one method
  fedran bench run --method fedran --method fedncm --dataset digits"""


def methods(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", help="Show claims, verification and settings of these."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all settings.")] = False,
) -> None:
    """List the methods of the benchmark, or show all about some of them."""
    rows = [describe_method(key) for key in keys or METHODS]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    console = Console(width=min(100, Console().width), highlight=False)
    if keys:
        for row in rows:
            _show(console, row)
    else:
        _list(console, rows)
        console.print(
            f"{FLAVOURS} {', '.join(r['key'] for r in rows if 'flavour' in r['settings'])}"
        )
    console.print(f"\n{NOTE if keys else NEXT}")


def _list(console: Console, rows: list[dict[str, Any]]) -> None:
    """One line per method below its family: the key, and what its clients send."""
    for family in dict.fromkeys(row["family"] for row in rows):
        console.print(f"[bold]{escape(family)}[/bold]")
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(min_width=max(len(row["key"]) for row in rows), no_wrap=True)
        grid.add_column(style="dim", overflow="fold")
        for row in rows:
            if row["family"] == family:
                grid.add_row(escape(row["key"]), escape(row["sends"]))
        console.print(Padding(grid, (0, 0, 0, 2)))


def _show(console: Console, row: dict[str, Any]) -> None:
    claims = ", ".join(short for name, short in _CLAIMS.items() if row["claims"][name])
    settings = ", ".join(f"{name} = {value!r}" for name, value in row["settings"].items())
    console.print(f"[bold]{row['key']}[/bold]  {escape(row['name'])}, {row['family']}")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", min_width=8)
    grid.add_column(overflow="fold")
    if row["does"]:
        grid.add_row("does", escape(row["does"]))
    grid.add_row("claims", claims or "none")
    grid.add_row("sends", escape(row["sends"]))
    grid.add_row("verified", escape(row["verified"]))
    grid.add_row("settings", escape(settings) or "none")
    console.print(Padding(grid, (0, 0, 0, 4)))


def describe_method(key: str) -> dict[str, Any]:
    """Name, docstring, claims, uploads and settings of a method as plain values."""
    method = make_method(key)
    return {
        "key": key,
        "name": method.name,
        "family": method.family,
        "does": _docstring(type(method)),
        "claims": asdict(method.claims),
        "sends": method.sends,
        "verified": method.verified,
        "settings": method.params(),
    }


def _docstring(kind: type[Any]) -> str:
    """What the class says about itself, one line per paragraph."""
    text = inspect.getdoc(kind) or ""
    if text.startswith(f"{kind.__name__}("):  # written by dataclass: the signature
        return ""
    return "\n".join(" ".join(p.split()) for p in text.split("\n\n")).replace("``", "'")
