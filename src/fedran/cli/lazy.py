"""Groups of commands that import the module of a command when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from inspect import cleandoc
from typing import NamedTuple

import click
import typer


class Command(NamedTuple):
    """A command before it is imported."""

    help: str
    """The first sentence of its help."""
    module: str
    """Where it is: the function of the command's name, or ``app``."""
    examples: tuple[str, ...] = ()
    """Lines as a user would type them."""

    def load(self, name: str) -> click.Command:
        """Import the command."""
        module = import_module(self.module)
        app = getattr(module, "app", None)
        if app is None:
            app = typer.Typer(add_completion=False)
            shown = "\n\n".join(("Examples:", *self.examples)) if self.examples else None
            function = getattr(module, name)
            paragraphs = cleandoc(function.__doc__ or "").split("\n\n")
            text = "\n\n".join(part.replace("\n", " ") for part in paragraphs)
            app.command(name, help=text, epilog=shown)(function)
        command = typer.main.get_command(app)
        command.name = name
        return command


class LazyGroup(typer.core.TyperGroup):
    """A group whose help page imports none of its commands, so that every command starts fast."""

    def table(self) -> Mapping[str, Command]:
        """The commands in the order of the help page."""
        raise NotImplementedError

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names of all commands."""
        return list(self.table())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The name and the first sentence of a command, for the help page."""
        found = self.table().get(cmd_name)
        return None if found is None else click.Command(cmd_name, help=found.help)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is about to run."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, self.table()[str(name)].load(str(name)), rest
