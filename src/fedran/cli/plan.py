"""``fedran plan``: what fits a byte budget."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import fedran
from fedran.wire.sizes import human_bytes, parse_bytes


def plan(
    out_features: Annotated[int, typer.Option(help="M, the width of the random features.")],
    classes: Annotated[int, typer.Option(help="Classes one client holds in one task.")],
    budget: Annotated[
        str | None, typer.Option(help="Bytes a client may send per task, e.g. 2MB or 1.5MiB.")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Or: the rank, to see what it costs.")] = None,
    in_features: Annotated[
        int | None, typer.Option(help="d, to compare with sending features.")
    ] = None,
    classes_seen: Annotated[
        int | None, typer.Option(help="All classes the head knows (default: --classes).")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="mixed, int8, float16, float32 or float64.")
    ] = "mixed",
    bits: Annotated[float, typer.Option(help="Bits a number on average, for mixed.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The largest rank that fits a byte budget, and what else the bytes could buy."""
    if (budget is None) == (rank is None):
        raise ValueError("give --budget or --rank, not both")
    p = fedran.plan(
        None if budget is None else parse_bytes(budget),
        out_features=out_features,
        n_classes=classes,
        rank=rank,
        in_features=in_features,
        classes_seen=classes_seen,
        precision=precision,
        bits=bits,
    )
    if p.rank == 0:
        least = fedran.plan(
            out_features=out_features, n_classes=classes, rank=1, precision=precision, bits=bits
        )
        raise ValueError(
            f"{budget} does not fit: the sums of {classes} classes and one column of "
            f"{out_features} features take {human_bytes(least.upload)}"
        )
    if as_json:
        typer.echo(json.dumps(asdict(p), indent=2))
        return
    table = Table(show_header=False, show_edge=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in _rows(p):
        table.add_row(*row)
    Console().print(table)


def _rows(p: fedran.Plan) -> list[tuple[str, str, str]]:
    sized = "estimate" if p.precision == "mixed" else "but for labels"
    rows = [
        ("rank", str(p.rank), "largest that fits" if p.budget is not None else "as given"),
        ("upload", human_bytes(p.upload), f"{p.precision}, {sized}"),
        ("download", human_bytes(p.download), "the head, float16"),
        ("paper's rank", str(p.paper_rank), "for the same bytes, 8 a number"),
        ("paper's upload", human_bytes(p.paper_upload), "(M r + r + M C) x 8 at this rank"),
        ("exact Gram", human_bytes(p.gram_upload), "instead: packed symmetric, float32"),
    ]
    if p.feature_rows_float32 is not None:
        rows += [
            (
                "float32 features",
                f"< {p.feature_rows_float32} rows",
                "are smaller than this upload",
            ),
            (
                "8-bit features",
                f"< {p.feature_rows_8bit} rows",
                "are smaller, but per-person records",
            ),
        ]
    return rows
