"""Commands that watch a federation and decide about uploads and heads."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fedran.cli.federation.arguments import Client, ServerFolder, find_server, find_site


def status(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a server, federation or site.", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Serve a page on this machine that refreshes itself.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes any free port.")
    ] = 8765,
    metrics: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write metrics in Prometheus' text format, for node_exporter; - prints them.",
        ),
    ] = None,
) -> None:
    """Show tasks, sites, keys, bytes, accuracy and rejected uploads, or the state of a site.

    Only reads files. The page of --web also has /metrics for Prometheus and
    /status.json.
    """
    from rich.console import Console

    from fedran.federation.status.metrics import render_metrics
    from fedran.federation.status.reader import Reader
    from fedran.federation.status.site import read_site
    from fedran.federation.status.terminal import print_status
    from fedran.wire.files import write_atomically

    if sum((as_json, web, metrics is not None)) > 1:
        raise ValueError("--json, --web and --metrics exclude each other; give one of them")
    if (folder / "site.toml").is_file():
        if web or metrics:
            raise ValueError("the status of a site is text or --json; other options show a server")
        found = read_site(find_site(folder))
    elif web:
        from fedran.federation.status.web import StatusServer

        with StatusServer(Reader(folder), port) as page, suppress(KeyboardInterrupt):
            typer.echo(f"{page.url}  (visible to all users of this machine; Ctrl-C stops it)")
            page.serve_forever()
        return
    else:
        found = Reader(folder).read()
    if metrics == Path("-"):
        typer.echo(render_metrics(found).decode(), nl=False)
    elif metrics is not None:
        write_atomically(metrics, render_metrics(found))
        metrics.chmod(0o644)  # the collector runs as another user
    elif as_json:
        typer.echo(found.to_json())
    else:
        print_status(found, Console(highlight=False))


def accept(
    folder: ServerFolder,
    client: Client,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="No longer: judge the site like the others.")
    ] = False,
) -> None:
    """Vouch for a site: it counts whatever others say, and so do classes that it alone has."""
    from fedran.federation.ops.decisions import vouch_for

    digest = vouch_for(find_server(folder), client, withdraw=withdraw)
    now = "is judged like the others again" if withdraw else "counts"
    typer.echo(f"{client} {now}; classifier {digest[:12] or 'none'} is in service")


def rollback(
    folder: ServerFolder,
    task: Annotated[
        str | None,
        typer.Argument(help="The task after which it was solved.", show_default=False),
    ] = None,
    release: Annotated[
        bool,
        typer.Option("--release", help="Put the newest classifier into service instead."),
    ] = False,
) -> None:
    """Put the classifier after an earlier task back into service; --release ends this."""
    from fedran.federation.ops.decisions import release_head, roll_back

    paths = find_server(folder)
    if release == (task is not None):
        raise ValueError("expected either the task to go back to, or --release")
    if task is None:
        digest = release_head(paths)
        typer.echo(f"classifier {digest[:12]} is in service; a running server will send it")
        return
    digest, identical = roll_back(paths, task)
    why = "sites calibrate it again, or something in it was forgotten or revised"
    same = "the same bytes as then" if identical else f"not the same bytes: {why}"
    typer.echo(f"classifier {digest[:12]} after {task} is in service again ({same})")
    typer.echo(
        "a running server sends it; newer ones wait for `fedran federation rollback --release`"
    )
