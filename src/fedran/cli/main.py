"""The entry point: commands, one-line errors, exit codes."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Annotated

import click
import typer

import fedran
from fedran.cli.lazy import Command, LazyGroup
from fedran.core.errors import nearest, printable

OWN = {
    "features": Command(
        "Compute the features of images or texts once and write them to a file.",
        "fedran.cli.features",
        (
            "fedran features scans/",
            "fedran features ct/ --range=-160,240 --backbone hf:models/dinov2-small",
            "fedran features tickets.csv --column text --backbone hf:models/MiniLM",
        ),
    ),
    "condense": Command(
        "Make points of rows: the message of a site, most accurate for its bytes.",
        "fedran.cli.messages",
        (
            "fedran condense scans-efficientnet_lite0.npz --out site-3.fedran",
            "fedran condense visits.csv --label diagnosis --min-group 5",
        ),
    ),
    "summarize": Command(
        "Make a summary of rows: a message that can be added up to a sum.",
        "fedran.cli.messages",
        ("fedran summarize scans-efficientnet_lite0.npz --rank 128 --out site-3.fedran",),
    ),
    "solve": Command(
        "Solve for the head of all messages. Nothing is trained.",
        "fedran.cli.messages",
        ("fedran solve site-*.fedran --out head.fedran",),
    ),
    "predict": Command(
        "Predict the labels of images, texts or rows of features with a saved head.",
        "fedran.cli.predict",
        (
            "fedran predict head.fedran new_scans/ --out labels.csv",
            "fedran predict head.fedran visits.csv --id patient --out labels.csv",
            "fedran predict head.fedran mails.csv --column text --backbone hf:models/MiniLM",
        ),
    ),
    "plan": Command(
        "Find the points for a byte budget.",
        "fedran.cli.plan",
        ("fedran plan --budget 300kB --in-features 1280 --rows 2000 --classes 20",),
    ),
    "inspect": Command(
        "Show the content of a file: sizes, classes, accounts, fingerprint.",
        "fedran.cli.inspect",
        ("fedran inspect site-3.fedran",),
    ),
    "leak": Command(
        "Attack a message or a head with rows that it was made of, and show what the attacks find.",
        "fedran.cli.leak",
        ("fedran leak site-3.fedran scans-efficientnet_lite0.npz --reference others.npz",),
    ),
    "federation": Command(
        "Create, run and watch a federation of sites on Flower.",
        "fedran.cli.federation",
    ),
}
"""Every command with the first sentence of its help, in the order of the help page."""


def find_commands() -> Mapping[str, Command]:
    """Our commands after those of installed packages, which are mappings like ``OWN``."""
    added: dict[str, Command] = {}
    for point in entry_points(group="fedran.commands"):
        added.update(point.load())
    return {**added, **OWN}


class Commands(LazyGroup):
    """All commands. The answer to a name that stands in a group names the group."""

    def table(self) -> Mapping[str, Command]:
        """The commands in the order of the help page."""
        return find_commands()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The name and the first sentence of a command, for the help page."""
        found = super().get_command(ctx, cmd_name)
        if found is None:
            close = nearest(cmd_name, self.list_commands(ctx))
            for name in ("federation", "bench"):
                group = self.table()[name].load(name) if name in self.table() else None
                if isinstance(group, click.Group) and cmd_name in group.list_commands(ctx):
                    close = f" (did you mean '{name} {cmd_name}'?)"
            ctx.fail(f"No such command {cmd_name!r}{close}")
        return found


app = typer.Typer(
    name="fedran",
    help="Federated continual classification without training.",
    cls=Commands,
    no_args_is_help=True,
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
