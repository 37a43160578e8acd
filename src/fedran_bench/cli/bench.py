"""``fedran bench run | report | methods``."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from fedran.cli.lazy import Command, LazyGroup

COMMANDS = {
    "run": Command(
        "Run an experiment or a sweep. Runs that are already done are skipped.",
        "fedran_bench.cli.run",
    ),
    "report": Command(
        "Print a verdict and the accuracies of all results in a folder, and write them as pages.",
        "fedran_bench.cli.report",
    ),
    "methods": Command(
        "List the methods of the benchmark, or show all about some of them.",
        "fedran_bench.cli.methods",
    ),
}


class BenchCommands(LazyGroup):
    """The commands of the benchmark."""

    def table(self) -> Mapping[str, Command]:
        """The commands in the order of the help page."""
        return COMMANDS


app = typer.Typer(
    name="bench",
    help="Run methods on the same streams, and report what they reached.",
    cls=BenchCommands,
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def _bench() -> None:
    """Run methods on the same streams, and report what they reached."""
