"""The entry point: commands, one-line errors, exit codes."""

from __future__ import annotations

import pkgutil
import sys
import traceback
from typing import Annotated

import click
import typer

import fedran
from fedran.core.errors import nearest, printable

COMMANDS = {
    "demo": "fedran.cli.demo:demo",
    "plan": "fedran.cli.plan:plan",
    "inspect": "fedran.cli.inspect:inspect",
    "leak": "fedran.cli.leak:leak",
    "methods": "fedran.cli.methods:methods",
    "run": "fedran.cli.run:run",
    "report": "fedran.cli.report:report",
    "features": "fedran.cli.features:features",
    "predict": "fedran.cli.predict:predict",
    "federation": "fedran.cli.federation:app",
}
"""The function or Typer app of each command, in the order of the help page."""


class LazyCommands(typer.core.TyperGroup):
    """Imports the module of a command when it is used, so that every command starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command of this name."""
        if cmd_name not in COMMANDS:
            ctx.fail(f"No such command {cmd_name!r}{nearest(cmd_name, COMMANDS)}")
        found = pkgutil.resolve_name(COMMANDS[cmd_name])
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False)
            found.command(cmd_name)(function)
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command


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
        if isinstance(error, OSError) and error.strerror and error.filename:
            message = f"{error.filename}: {error.strerror}"
        elif isinstance(error, (ValueError, OSError, ImportError)):
            message = str(error)
        else:
            message = repr(error)
    typer.echo(f"fedran: {printable(' '.join(message.split()), 2000)}", err=True)
    return 2


def main() -> None:
    """The console script ``fedran``."""
    sys.exit(run())
