"""``fedran plan``: group size and step of points for a byte budget."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

import fedran
from fedran.cli.tables import named_values
from fedran.core.sums.aggregator import LANDMARKS
from fedran.wire.sizes import VALUE_BITS, human_bytes, parse_bytes


def plan(
    classes: Annotated[int, typer.Option(help="Number of classes per client and task.")],
    in_features: Annotated[int, typer.Option(help="Number of features (d).")],
    rows: Annotated[int, typer.Option(help="Labelled rows per client and task.")],
    budget: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Largest upload per client and task: 2MB, 1.5MiB, ..."),
    ],
    min_group: Annotated[int, typer.Option(help="Least rows per group of points.")] = 1,
    value_bits: Annotated[
        float, typer.Option(help="Bits per value of points at step 1; see fedran inspect.")
    ] = VALUE_BITS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the points for a byte budget.

    Says first whether every row fits. Otherwise recommends a group size and a step.
    """
    size = parse_bytes(budget)
    p = fedran.plan(size, in_features, classes, rows, min_group=min_group, value_bits=value_bits)
    if p.group_size is None or p.upload is None:
        advice = f", or some classes have fewer than {min_group} rows" if min_group > 1 else ""
        raise ValueError(f"no message fits into {budget}{advice}")
    if as_json:
        typer.echo(json.dumps({**asdict(p), "all_rows_fit": p.all_rows_fit}, indent=2))
        return
    verdict = "Every row fits" if p.all_rows_fit else "Not every row fits"
    typer.echo(f"{verdict}: {rows} rows at step 1 take about {human_bytes(p.all_rows)}.\n")
    if (own := 4 * in_features * rows) < p.upload:
        typer.echo(f"In float32, the rows themselves are smaller: {human_bytes(own)}.\n")
    group = "rows per group" + (f", at least {min_group}" if min_group > 1 else "")
    lines = [
        ("group size", str(p.group_size), group),
        ("step", f"{p.step:g}", "deviations of a column"),
        ("points", human_bytes(p.upload), "estimate"),
        ("download", human_bytes(p.download), f"a head with up to {LANDMARKS} landmarks"),
    ]
    Console().print(named_values(lines))
