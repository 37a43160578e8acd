"""Commands that watch a federation and decide about uploads and heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedran.cli.federation.arguments import Client, ServerFolder, Task, find_server, find_site

if TYPE_CHECKING:
    from fedran.federation.status.model import Status
    from fedran.federation.status.reader import Reader


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
        bool, typer.Option("--metrics", help="Print metrics in Prometheus' text format.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="With --metrics: write a file, for node_exporter's textfile collector."),
    ] = None,
    influence: Annotated[
        bool,
        typer.Option(
            "--influence",
            help="Also measure the accuracy without each site on `validation` of server.toml. "
            "Slow: one solve per site.",
        ),
    ] = False,
) -> None:
    """Show tasks, sites, keys, bytes, accuracy and rejected uploads, or the state of a site.

    Only reads files. The page of --web also has /metrics for Prometheus and
    /status.json.
    """
    from rich.console import Console

    from fedran.federation.status.reader import Reader
    from fedran.federation.status.site import read_site
    from fedran.federation.status.terminal import print_status

    if sum((as_json, web, metrics)) > 1:
        raise ValueError("--json, --web and --metrics exclude each other; give one of them")
    if out is not None and not metrics:
        raise ValueError("--out is for --metrics")
    if (folder / "site.toml").is_file():
        if web or metrics or influence:
            raise ValueError("the status of a site is text or --json; other options show a server")
        found = read_site(find_site(folder))
    elif web:
        _serve(Reader(folder), port)
        return
    else:
        found = Reader(folder).read()
    if influence:
        found = _with_influence(folder, found)
    if metrics:
        _write_metrics(found, out)
    elif as_json:
        typer.echo(found.to_json())
    else:
        print_status(found, Console(highlight=False))


def _serve(reader: Reader, port: int) -> None:
    from fedran.federation.status.web import StatusServer

    with StatusServer(reader, port) as page:
        typer.echo(f"{page.url}  (visible to all users of this machine; Ctrl-C stops it)")
        try:
            page.serve_forever()
        except KeyboardInterrupt:
            typer.echo("")


def _write_metrics(status: Status, out: Path | None) -> None:
    from fedran.federation.status.metrics import render_metrics
    from fedran.wire.files import write_atomically

    found = render_metrics(status)
    if out is None:
        typer.echo(found.decode(), nl=False)
    else:
        write_atomically(out, found)
        out.chmod(0o644)  # the collector runs as another user


def _with_influence(folder: Path, status: Status) -> Status:
    from fedran.federation.ops.decisions import influence_of_sites

    typer.echo("measuring the accuracy without each site: one solve per site", err=True)
    gains = influence_of_sites(find_server(folder))
    sites = [replace(site, gain=gains.get(site.client)) for site in status.sites]
    return replace(status, sites=sites)


def accept(
    folder: ServerFolder,
    client: Client,
    task: Task,
    reject: Annotated[
        bool, typer.Option("--reject", help="Reject it. The site may correct its rows.")
    ] = False,
    reason: Annotated[str, typer.Option(help="With --reject: a sentence for the site.")] = "",
) -> None:
    """Accept an upload that is in quarantine because it is unusual, or reject it."""
    from fedran.federation.ops.decisions import decide_upload

    if reason and not reject:
        raise ValueError("--reason tells a site why its upload is rejected: give --reject too")
    receipt = decide_upload(find_server(folder), client, task, reject=reject, reason=reason)
    now = "tells the site" if reject else "will send a new classifier"
    typer.echo(f"{client}, {task}: {receipt.code}; a running server {now}")


def rollback(
    folder: ServerFolder,
    task: Annotated[
        str | None,
        typer.Argument(help="The task after which it was solved.", show_default=False),
    ] = None,
    release: Annotated[
        bool,
        typer.Option(
            "--release", help="Put the newest classifier, which is held back, into service instead."
        ),
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
    same = "the same bytes as then" if identical else "without what was forgotten or revised"
    typer.echo(f"classifier {digest[:12]} after {task} is in service again ({same})")
    typer.echo(
        "a running server sends it; newer ones wait for `fedran federation rollback --release`"
    )
