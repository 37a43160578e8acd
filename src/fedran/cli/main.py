"""The entry point: commands, one-line errors, exit codes."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import click
import typer

import fedran
from fedran.cli.demo import demo
from fedran.cli.features import features
from fedran.cli.federation import app as federation
from fedran.cli.inspect import inspect
from fedran.cli.methods import methods
from fedran.cli.plan import plan
from fedran.cli.predict import predict
from fedran.cli.report import report
from fedran.cli.run import run as run_experiment
from fedran.core.errors import printable

app = typer.Typer(
    name="fedran",
    help="Federated continual classification without training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(plan)
app.command()(inspect)
app.command()(methods)
app.command(name="run")(run_experiment)
app.command()(report)
app.command()(features)
app.command()(predict)
app.add_typer(federation)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedran {fedran.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback when something fails.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Federated continual classification without training."""
    del debug, version  # --debug is read by run(), where errors end up


def run(arguments: list[str] | None = None) -> int:
    """Run the CLI; an error is one line on stderr and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(args=arguments, prog_name="fedran", standalone_mode=False)
        if code == 130:
            typer.echo("fedran: stopped", err=True)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as help_text:
        typer.echo(help_text.format_message())
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "fedran"
        message = f"{error.format_message().rstrip('.?')} (see {command} --help)"
    except (KeyboardInterrupt, click.Abort):
        typer.echo("fedran: stopped", err=True)
        return 130
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
            return 2
        message = (
            f"{error}" if isinstance(error, (ValueError, OSError, ImportError)) else repr(error)
        )
    typer.echo(f"fedran: {printable(' '.join(message.split()), 2000)}", err=True)
    return 2


def main() -> None:
    """Console script."""
    sys.exit(run())
