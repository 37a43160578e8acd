"""``fedran leak MESSAGE ROWS --reference OTHER``: what a message reveals, before it is sent."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from fedran.cli.predict import require_features
from fedran.cli.tables import print_numbers
from fedran.core.errors import Refused, printable
from fedran.core.mixture import Mixture
from fedran.core.summary import Summary
from fedran.data.rows import LABEL, read_rows
from fedran.leakage import ClassLeakage, Leakage, Tolerance, measure
from fedran.leakage.membership import LEAST_FOR_TPR
from fedran.wire.codec import decode
from fedran.wire.files import load, refusals_name_file, require_file
from fedran.wire.validation import FILE_LIMITS

SHOWN = 12
"""Classes in the table, unless all are asked for."""
READABLE = "rows with labels (.npz, .csv or .parquet)"
ARRAYS = {"features": "labels", "test": "test_labels", "X": "y"}
"""Names of the arrays of rows and of labels in an .npz file."""
LIMITS = Tolerance()


def leak(
    message: Annotated[Path, typer.Argument(help="A saved summary or mixture, or an envelope.")],
    rows: Annotated[Path, typer.Argument(help=f"What it was made of: {READABLE}.")],
    reference: Annotated[
        Path, typer.Option(help="Other rows of the same classes, which are not in the message.")
    ],
    partial: Annotated[
        bool, typer.Option("--partial", help="The message describes more rows than these.")
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
    max_share: Annotated[
        float, typer.Option(min=0, max=1, help="How much more of a member the factor may hold.")
    ] = LIMITS.share,
    max_cosine: Annotated[
        float, typer.Option(min=0, max=1, help="Of the recovered mean feature of a small class.")
    ] = LIMITS.cosine,
    small_class: Annotated[
        int, typer.Option(min=0, help="A class with fewer rows is small.")
    ] = LIMITS.small_class,
    label: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column of labels, if the rows are tables.")
    ] = LABEL,
    all_classes: Annotated[bool, typer.Option("--all", help="Show every class.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Attack a message with the rows that it was made of, and show what the attacks find.

    Exit code 1 if a figure is above its limit, 0 otherwise.
    """
    content = _read_message(message)
    members, others = (
        read_rows(require_file(path, READABLE), label, arrays=ARRAYS) for path in (rows, reference)
    )
    assert content.fingerprint is not None
    width = content.fingerprint.fields.get("d")
    for path, read in ((rows, members), (reference, others)):
        require_features(path, read.X, width if isinstance(width, int) else None)
    try:
        with Console(stderr=True).status("Attacking the message ..."):
            found = measure(content, members.X, members.y, others.X, others.y, partial=partial)
    except Refused as reason:
        field = {"Z": str(rows), "reference": str(reference)}.get(reason.field, reason.field)
        raise Refused(field, reason.expected, reason.got, reason.hint) from None
    limits = Tolerance(max_rows, small_class, max_cosine, max_share, max_auc, max_tpr)
    if as_json:
        typer.echo(json.dumps(as_fields(found, limits), indent=2))
    else:
        _show(Console(highlight=False), found, limits, all_classes)
    if found.exceeded(limits):
        raise typer.Exit(1)


def _read_message(path: Path) -> Summary | Mixture:
    require_file(path, "a saved summary or mixture, or an envelope")
    if path.suffix == ".envelope":
        from fedran.federation.protocol.messages import open_envelope

        with refusals_name_file(path):
            found = decode(open_envelope(path.read_bytes(), FILE_LIMITS).upload)
    else:
        found = load(path)
    if not isinstance(found, (Summary, Mixture)):
        kind = type(found).__name__.lower()
        raise Refused(str(path), "a summary or a mixture", f"the kind {kind!r}")
    if found.fingerprint is None:
        raise Refused(str(path), "a message that identifies its features", "no fingerprint")
    return found


def as_fields(found: Leakage, limits: Tolerance) -> dict[str, Any]:
    """The measured figures, findings and limits as plain values."""
    findings = [
        {**finding._asdict(), "exceeded": finding.exceeded} for finding in found.findings(limits)
    ]
    return {**asdict(found), "limits": asdict(limits), "findings": findings}


def _show(console: Console, found: Leakage, limits: Tolerance, all_classes: bool) -> None:
    console.print(f"[bold]{escape(found.description[:1].upper() + found.description[1:])}[/bold]")
    console.print(
        f"Attacked with {found.members:,} of its rows and {found.reference:,} other rows.\n"
    )
    findings = found.findings(limits)
    table = Table(
        box=None, show_header=False, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0)
    )
    table.add_column(no_wrap=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True, style="dim")
    for finding in findings:
        mark = "[red]OVER[/red]" if finding.exceeded else "[green]ok[/green]"
        table.add_row(mark, finding.name, finding.measured, f"limit {finding.limit:g}")
    console.print(table)
    console.print("\n[bold]Is a row a member?[/bold] AUC 0.5 is guessing, 1 is certain.")
    rates = found.tpr is not None
    rows = [[a.name, f"{a.auc:.3f} ± {a.error:.3f}", _percent(a.tpr)] for a in found.attacks]
    header = ["attack", "AUC", "found at 0.1 %"]
    print_numbers(console, header[: 2 + rates], [row[: 2 + rates] for row in rows])
    if not rates:
        console.print(
            f"[dim]A rate at 0.1 % false positives needs more than {LEAST_FOR_TPR:,} other rows "
            "of these classes.[/dim]"
        )
    chosen = sorted(found.classes, key=_severity)
    chosen = chosen if all_classes else chosen[:SHOWN]
    more = len(found.classes) - len(chosen)
    console.print("\n[bold]Classes[/bold], the most revealing first")
    print_numbers(
        console,
        ["class", "rows", "other rows", "cosine of mean", "rows recovered", "AUC"],
        [
            [
                escape(printable(str(c.label), 24)),
                f"{c.rows:,}",
                f"{c.reference_rows:,}",
                f"{c.cosine:.3f}",
                f"{c.recovered}",
                "-" if c.auc is None else f"{c.auc:.3f}",
            ]
            for c in chosen
        ],
    )
    if more:
        console.print(f"[dim]{more} more classes: --all[/dim]")
    over = [finding for finding in findings if finding.exceeded]
    if over:
        console.print("\n[bold]What would lower these figures[/bold]")
        for advice in dict.fromkeys(text for finding in over for text in finding.advice):
            about = ", ".join(finding.name for finding in over if advice in finding.advice)
            console.print(Padding(f"{advice} [dim]({about})[/dim]", (0, 0, 0, 2), expand=False))
    summary = f"{len(over)} of {len(findings)} figures are above their limits."
    console.print(f"\n{summary if over else 'All figures are within their limits.'}")


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.2f} %"


def _severity(c: ClassLeakage) -> tuple[int, float, int]:
    return -c.recovered, -(c.auc or 0.0), c.rows
