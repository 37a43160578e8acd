"""``fedran leak MESSAGE ROWS --reference OTHER``: what a message or a head reveals."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedran.cli.inputs import in_order, matching_scaler, ordered_features, require_labelled
from fedran.cli.messages import READABLE, read_message
from fedran.cli.tables import print_numbers
from fedran.core.errors import Refused
from fedran.data.feature_file import read_parts
from fedran.data.rows import LABEL
from fedran.leakage import Leakage, Number, Tolerance, measure
from fedran.wire.files import require_file

LIMITS = Tolerance()


def leak(
    message: Annotated[
        Path, typer.Argument(help="Saved points, a saved summary or head, or an envelope.")
    ],
    rows: Annotated[Path, typer.Argument(help=f"What it was made of: {READABLE}.")],
    reference: Annotated[
        Path | None,
        typer.Option(help="Other rows of these classes (default: the test rows in ROWS)."),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="The message has more rows than these.")
    ] = False,
    max_rows: Annotated[
        int, typer.Option(min=0, help="Most single rows that may be recovered.")
    ] = LIMITS.rows,
    max_auc: Annotated[
        float, typer.Option(min=0, max=1, help="Largest AUC of a membership attack (0.5: none).")
    ] = LIMITS.auc,
    max_tpr: Annotated[
        float, typer.Option(min=0, max=1, help="Most members found at 0.1 % false positives.")
    ] = LIMITS.tpr,
    max_cosine: Annotated[
        float, typer.Option(min=0, max=1, help="Of the recovered mean feature of a small class.")
    ] = LIMITS.cosine,
    label: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column of labels, if the rows are tables.")
    ] = LABEL,
    scaler: Annotated[
        Path | None, typer.Option(help="The scaler as JSON, for a message of scaled rows.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Attack a message or a head with rows that it was made of, and show what the attacks find.

    Exit code 1 if a number is above its limit, 0 otherwise.
    """
    content = read_message(message)
    members = read_parts(require_file(rows, READABLE), label)
    if reference is None and "test" not in members:
        hint = "name other rows of these classes with --reference"
        raise Refused(str(rows), "training and test rows", "no test rows", hint)
    apart = members if reference is None else read_parts(require_file(reference, READABLE), label)
    others = apart["test"] if "test" in apart else apart["train"]
    own = members["train"] if "train" in members else members["test"]
    reference = reference or rows
    assert content.fingerprint is not None
    width = content.fingerprint.fields.get("d")
    scale, features = matching_scaler(content.fingerprint, scaler, message), []
    for path, read in ((rows, own), (reference, others)):
        Z, columns = ordered_features(path, read, content.fingerprint, scale, None)
        require_labelled(path, replace(read, X=Z), width if isinstance(width, int) else None)
        features.append(Z if scale is None else in_order(scale, columns).standardize(Z))
    try:
        with Console(stderr=True).status("Attacking the message ..."):
            found = measure(content, features[0], own.y, features[1], others.y, partial=partial)
    except Refused as reason:
        field = {"Z": str(rows), "reference": str(reference)}.get(reason.field, reason.field)
        raise Refused(field, reason.expected, reason.got, reason.hint) from None
    limits = Tolerance(max_rows, max_cosine, max_auc, max_tpr)
    if as_json:
        numbers = [{**n._asdict(), "limit": getattr(limits, n.measure)} for n in found.numbers]
        typer.echo(json.dumps({**asdict(found), "numbers": numbers}, indent=2))
    else:
        _show(found, limits)
    if found.over(limits):
        raise typer.Exit(1)


def _show(found: Leakage, limits: Tolerance) -> None:
    console = Console(highlight=False)
    console.print(f"[bold]{found.description[:1].upper() + found.description[1:]}[/bold]")
    console.print(
        f"Attacked with {found.members:,} of its rows and {found.reference:,} other rows.\n"
    )
    over = found.over(limits)
    rows = []
    for n in found.numbers:
        mark = "[red]OVER[/red]" if n in over else "[green]ok[/green]  "
        rows.append([f"{mark}  {n.attack}", _text(n), f"{getattr(limits, n.measure):g}"])
    print_numbers(console, ["      attack", "found", "limit"], rows)
    console.print("\n[dim]AUC says how well an attack tells members: 0.5 is guessing.[/dim]")
    if over:
        console.print(f"\n{len(over)} of {len(found.numbers)} numbers are above their limits.")
        console.print(over[0].advice)
    else:
        console.print("\nAll numbers are within their limits.")


def _text(n: Number) -> str:
    if n.tries is not None:
        return f"{n.value:.0f} of {n.tries}"
    if n.error is not None:
        return f"AUC {n.value:.3f} ± {n.error:.3f}"
    return f"{n.value:.2%}" if n.measure == "tpr" else f"{n.value:.3f}"
