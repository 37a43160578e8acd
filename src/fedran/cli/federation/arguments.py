"""Arguments that several commands of ``fedran federation`` share."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedran.core.labels import Label

if TYPE_CHECKING:
    from fedran.federation.server.settings import ServerPaths
    from fedran.federation.site.settings import SitePaths

Privacy = Literal["none", "secure", "dp"]
NewFolder = Annotated[Path, typer.Argument(help="A new folder.", show_default=False)]
FederationFolder = Annotated[
    Path, typer.Argument(help="Folder of a federation, as created by `init`.", show_default=False)
]
ServerFolder = Annotated[
    Path, typer.Argument(help="Folder of the server or of the federation.", show_default=False)
]
SiteFolder = Annotated[Path, typer.Argument(help="Folder of the site.", show_default=False)]
Client = Annotated[str, typer.Argument(help="Id of the site.", show_default=False)]
Task = Annotated[str, typer.Argument(help="Id of the task.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Agree without a question, for scripts.")]


def require_agreement(yes: bool) -> None:
    """Ask whether to go on. Without agreement, the command ends with exit code 1."""
    if yes:
        return
    if not sys.stdin.isatty():
        typer.echo("nothing was changed: there is no terminal to ask at, and no --yes", err=True)
        raise typer.Exit(1)
    if not typer.confirm("Go on?"):
        typer.echo("nothing was changed")
        raise typer.Exit(1)


def parse_label(text: str) -> Label:
    """A label of the command line: an integer, a text in double quotes, or any other text.

    >>> parse_label("-3"), parse_label('"3"'), parse_label("cat")
    (-3, '3', 'cat')
    """
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if type(found) is int or isinstance(found, str) else text


def find_server(folder: Path) -> ServerPaths:
    """The server in a folder, or in its folder ``server``."""
    from fedran.federation.server.settings import ServerPaths

    return ServerPaths.find(folder)


def find_site(folder: Path) -> SitePaths:
    """The site in a folder."""
    from fedran.federation.site.settings import SitePaths

    return SitePaths.find(folder)
