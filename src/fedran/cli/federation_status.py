"""``fedran federation status``: the state of a federation in the terminal, as JSON or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

DEFAULT_PORT = 8765


def status(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the server or of the trial.", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Serve a page on this machine that refreshes itself.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes any free port.")
    ] = DEFAULT_PORT,
) -> None:
    """Show tasks, sites, bytes, accuracy and rejected uploads. Only reads; works at any time."""
    from fedran.federation.status.reader import Reader
    from fedran.federation.status.terminal import print_status

    if as_json and web:
        raise ValueError("--json and --web exclude each other; give one of them")
    reader = Reader(folder)
    if web:
        from fedran.federation.status.web import StatusServer

        with StatusServer(reader, port) as server:
            typer.echo(f"{server.url}  (visible to all users of this machine; Ctrl-C stops it)")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                typer.echo("")
    elif as_json:
        typer.echo(reader.read().to_json())
    else:
        print_status(reader.read(), Console(highlight=False))
