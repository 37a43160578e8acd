"""``fedran plan``: the message, and its rank or group size, for a byte budget."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

import fedran
from fedran.cli.tables import named_values
from fedran.wire.codec import DEFAULT_BITS
from fedran.wire.sizes import human_bytes, parse_bytes


def plan(
    out_features: Annotated[int, typer.Option(help="Number of random features (M).")],
    classes: Annotated[int, typer.Option(help="Number of classes per client and task.")],
    budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Largest upload per client and task: 2MB, 1.5MiB, ..."),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Instead of a budget: the rank whose costs to print.")
    ] = None,
    in_features: Annotated[
        int | None,
        typer.Option(help="Number of raw features (d). With --rows: mixtures too."),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(help="Labelled rows per client and task. With --in-features: mixtures too."),
    ] = None,
    min_group: Annotated[int, typer.Option(help="Least rows per group of a mixture.")] = 5,
    classes_seen: Annotated[
        int | None, typer.Option(help="Number of classes of the head (default: --classes).")
    ] = None,
    bits: Annotated[float, typer.Option(help="Average bits per value.")] = DEFAULT_BITS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the message for a byte budget, or the costs of a rank.

    A summary gets the largest rank that fits, a mixture the smallest groups. Also prints the size
    of the alternatives: the paper's message, the exact Gram, raw features.
    """
    if (budget is None) == (rank is None):
        raise ValueError("give either --budget or --rank")
    planned = partial(
        fedran.plan,
        out_features=out_features,
        n_classes=classes,
        in_features=in_features,
        n_rows=rows,
        min_group=min_group,
        classes_seen=classes_seen,
        bits=bits,
    )
    p = planned(None if budget is None else parse_bytes(budget), rank=rank)
    least = planned(rank=1).upload
    if not _fits(p, least):
        advice = "a mixture does not fit either, or would leave out most classes"
        if in_features is None or rows is None:
            advice = "with --in-features and --rows, a mixture is considered too"
        raise ValueError(
            f"{budget} is too small: the sums of {classes} classes and one column of "
            f"{out_features} features take {human_bytes(least)}; {advice}"
        )
    if as_json:
        typer.echo(json.dumps(asdict(p), indent=2))
        return
    size = p.mixture_upload if p.message == "mixture" else p.upload
    own = 4 * (in_features or 0) * (rows or 0)
    if size is not None and 0 < own < size:
        remedy = "no message fits into that"
        if _fits(planned(own), least):
            remedy = f"--budget {own} keeps the message below"
        if p.mixture_upload is not None and p.mixture_upload < own:
            remedy = f"the mixture takes {human_bytes(p.mixture_upload)}"
        typer.echo(
            f"Your rows are smaller than this {p.message}: {human_bytes(own)} in float32, not "
            f"{human_bytes(size)}; {remedy}.\n"
        )
    limit = "the largest that fits" if p.budget is not None else "as given"
    if p.budget is not None and rows is not None and p.rank == max(0, rows - classes):
        limit = "all that these rows have"
    lines = [
        ("rank", str(p.rank), limit),
        ("summary", human_bytes(p.upload), "estimate"),
        ("download", human_bytes(p.download), "the head in float16"),
    ]
    if p.group_size is not None and p.mixture_upload is not None:
        rule = "at least" if p.message == "summary" else "below"
        lines[:0] = [("message", p.message, f"the rank is {rule} a sixteenth of the rows")]
        lines[3:3] = [
            ("group size", str(p.group_size), "rows per group, the smallest that fits"),
            ("mixture", human_bytes(p.mixture_upload), "for any M, estimate"),
        ]
    Console().print(named_values(lines))


def _fits(p: fedran.Plan, least: int) -> bool:
    """Whether a message of the plan is within its budget. ``least``: a summary of one column."""
    return p.message == "mixture" or p.rank > 0 or p.budget is None or p.budget >= least
