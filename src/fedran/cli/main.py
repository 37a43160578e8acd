"""The entry point: commands, one-line errors, exit codes."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from typing import Annotated

import click
import typer

import fedran
from fedran.core.errors import nearest, printable

COMMANDS = {
    "demo": "Compare five methods on scikit-learn's digits. Takes some seconds.",
    "plan": "Find the message for a byte budget, or the costs of a rank.",
    "inspect": "Show the content of a file: sizes, classes, accounts, fingerprint.",
    "leak": "Attack a message with the rows that it was made of, and show what the attacks find.",
    "methods": "List the methods of the benchmark, or show all about some of them.",
    "run": "Run an experiment or a sweep. Runs that are already done are skipped.",
    "report": "Print a verdict and the accuracies of all results in a folder, "
    "and write them as pages.",
    "features": "Compute the features of images once and write them to a file.",
    "predict": "Predict the labels of rows of features with a saved head.",
    "federation": "Create, run and watch a federation of sites on Flower.",
}
"""The first sentence of each command in the order of the help page, which imports no command."""


def load_command(name: str) -> click.Command:
    """The command of this name: the function ``name``, or ``app``, of ``fedran.cli.name``."""
    module = import_module(f"fedran.cli.{name}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False)
        app.command(name)(getattr(module, name))
    command = typer.main.get_command(app)
    command.name = name
    return command


class LazyCommands(typer.core.TyperGroup):
    """Imports the module of a command when it is used, so that every command starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The name and the first sentence of a command, for the help page."""
        if cmd_name not in COMMANDS:
            close, below = nearest(cmd_name, COMMANDS), load_command("federation")
            if isinstance(below, click.Group) and cmd_name in below.commands:
                close = f" (did you mean 'federation {cmd_name}'?)"
            ctx.fail(f"No such command {cmd_name!r}{close}")
        return click.Command(cmd_name, help=COMMANDS[cmd_name])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is about to run."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(str(name)), rest


app = typer.Typer(
    name="fedran",
    help="Federated continual classification without training.",
    cls=LazyCommands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
    del debug, version  # run() reads --debug, because it prints the errors


def run(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code. An error is one line on stderr and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments  # before or after the command
    arguments = [argument for argument in arguments if argument != "--debug"]
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
        message = f"{error.format_message().rstrip('.')} (see {command} --help)"
    except (KeyboardInterrupt, click.Abort):
        typer.echo("fedran: stopped", err=True)
        return 130
    except Exception as error:
        if debug:
            traceback.print_exc()
            return 2
        if isinstance(error, OSError) and error.strerror:
            message = f"{error.filename or 'cannot write the output'}: {error.strerror}"
        elif isinstance(error, (ValueError, OSError, ImportError)):
            message = str(error)
        else:
            message = repr(error)
    typer.echo(f"fedran: {printable(' '.join(message.split()), 2000)}", err=True)
    return 2


def main() -> None:
    """The console script ``fedran``."""
    sys.exit(run())
