"""``fedran bench run | report | methods``."""

from __future__ import annotations

import typer

from fedran_bench.cli.methods import methods
from fedran_bench.cli.report import report
from fedran_bench.cli.run import run

COMMANDS = (run, report, methods)
app = typer.Typer(
    name="bench",
    help="Run methods on the same streams, and report what they reached.",
    no_args_is_help=True,
    add_completion=False,
)
for command in COMMANDS:
    app.command()(command)
