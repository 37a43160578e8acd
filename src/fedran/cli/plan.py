"""``fedran plan``: group size and step of points, or the rank of a summary, for a byte budget."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

import fedran
from fedran.cli.tables import named_values
from fedran.core.sums.aggregator import LANDMARKS
from fedran.wire.codec import DEFAULT_BITS
from fedran.wire.sizes import VALUE_BITS, human_bytes, parse_bytes


def plan(
    classes: Annotated[int, typer.Option(help="Number of classes per client and task.")],
    budget: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Largest upload per client and task: 2MB, 1.5MiB, ..."),
    ],
    in_features: Annotated[int | None, typer.Option(help="Number of features (d).")] = None,
    rows: Annotated[int | None, typer.Option(help="Labelled rows per client and task.")] = None,
    min_group: Annotated[int, typer.Option(help="Least rows per group of points.")] = 1,
    out_features: Annotated[
        int | None, typer.Option(help="Number of random features (M), for a summary.")
    ] = None,
    classes_seen: Annotated[
        int | None, typer.Option(help="Number of classes of the head (default: --classes).")
    ] = None,
    bits: Annotated[
        float, typer.Option(help="Average bits per value of a summary.")
    ] = DEFAULT_BITS,
    value_bits: Annotated[
        float, typer.Option(help="Bits per value of points at step 1; see fedran inspect.")
    ] = VALUE_BITS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the points for a byte budget, and the rank of a summary.

    Says first whether every row fits. Otherwise recommends a group size and a step. With
    --out-features, also prints the largest rank of a summary that fits.
    """
    p = fedran.plan(
        parse_bytes(budget),
        in_features,
        classes,
        rows,
        min_group=min_group,
        out_features=out_features,
        classes_seen=classes_seen,
        bits=bits,
        value_bits=value_bits,
    )
    summary_fits = p.summary_upload is not None and (p.rank or p.summary_upload <= p.budget)
    if p.group_size is None and not summary_fits:
        advice = f"or some classes have fewer than {min_group} rows" if min_group > 1 else ""
        raise ValueError(f"no message fits into {budget}{', ' * bool(advice)}{advice}")
    if as_json:
        typer.echo(json.dumps({**asdict(p), "all_rows_fit": p.all_rows_fit}, indent=2))
        return
    if p.all_rows is not None:
        verdict = "Every row fits" if p.all_rows_fit else "Not every row fits"
        size = human_bytes(p.all_rows)
        typer.echo(f"{verdict}: {rows} rows at step 1 take about {size}.\n")
    least = min(size for size in (p.upload, p.summary_upload) if size is not None)
    if 0 < (own := 4 * (in_features or 0) * (rows or 0)) < least:
        typer.echo(f"In float32, the rows themselves are smaller: {human_bytes(own)}.\n")
    lines = []
    if p.upload is not None:
        group = f"rows per group, at least {min_group}"
        lines += [
            ("group size", str(p.group_size), group if min_group > 1 else "rows per group"),
            ("step", f"{p.step:g}", "deviations of a column"),
            ("points", human_bytes(p.upload), "estimate"),
        ]
    if p.rank is not None and p.summary_upload is not None and summary_fits:
        limit = "the largest that fits"
        if rows is not None and p.rank == max(0, rows - classes):
            limit = "all that these rows have"
        lines += [
            ("rank", str(p.rank), limit),
            ("summary", human_bytes(p.summary_upload), "estimate"),
        ]
    head = f"a head with up to {LANDMARKS} landmarks"
    if p.upload is None:
        head = "a head over random features"
    Console().print(named_values([*lines, ("download", human_bytes(p.download), head)]))
