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

from fedran.cli.tables import named_values
from fedran_bench.methods.registry import METHODS, make_method

CLAIMS = {
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
            console.print(f"[bold]{row['key']}[/bold]  {escape(row['name'])}, {row['family']}")
            claims = [short for name, short in CLAIMS.items() if row["claims"][name]]
            settings = [f"{name} = {value!r}" for name, value in row["settings"].items()]
            shown = {
                "does": row["does"],
                "claims": ", ".join(claims) or "none",
                "sends": row["sends"],
                "verified": row["verified"],
                "settings": ", ".join(settings) or "none",
            }
            table = named_values((name, text) for name, text in shown.items() if text)
            console.print(Padding(table, (0, 0, 0, 4)))
    else:
        width = max(len(row["key"]) for row in rows)
        for family in dict.fromkeys(row["family"] for row in rows):
            console.print(f"[bold]{escape(family)}[/bold]")
            own = [r for r in rows if r["family"] == family]
            table = named_values((r["key"].ljust(width), r["sends"]) for r in own)
            console.print(Padding(table, (0, 0, 0, 2)))
        console.print(
            f"{FLAVOURS} {', '.join(r['key'] for r in rows if 'flavour' in r['settings'])}"
        )
    console.print(f"\n{NOTE if keys else NEXT}")


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
