"""Commands that watch a federation and decide about uploads and heads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedran.cli.federation.arguments import Client, ServerFolder, Task, find_server, find_site


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
) -> None:
    """Show tasks, sites, bytes, accuracy and rejected uploads, or the state of a site.

    Only reads files. The page of --web also has /metrics for Prometheus and
    /status.json.
    """
    from rich.console import Console

    from fedran.federation.status.reader import Reader
    from fedran.federation.status.terminal import print_site, print_status

    if as_json and web:
        raise ValueError("--json and --web exclude each other; give one of them")
    if (folder / "site.toml").is_file():
        from fedran.federation.site.report import read_site

        if web:
            raise ValueError("--web shows a server; the status of a site is text or --json")
        report = read_site(find_site(folder))
        typer.echo(report.to_json()) if as_json else print_site(report, Console(highlight=False))
        return
    reader = Reader(folder)
    if web:
        from fedran.federation.status.web import StatusServer

        with StatusServer(reader, port) as page:
            typer.echo(f"{page.url}  (visible to all users of this machine; Ctrl-C stops it)")
            try:
                page.serve_forever()
            except KeyboardInterrupt:
                typer.echo("")
    elif as_json:
        typer.echo(reader.read().to_json())
    else:
        print_status(reader.read(), Console(highlight=False))


def metrics(
    folder: ServerFolder,
    out: Annotated[
        Path | None,
        typer.Option(help="Write a file instead, for node_exporter's textfile collector."),
    ] = None,
) -> None:
    """Print the metrics of a server in Prometheus' text format. Only reads files."""
    from fedran.federation.status.metrics import render_metrics
    from fedran.federation.status.reader import Reader
    from fedran.wire.files import write_atomically

    found = render_metrics(Reader(folder).read())
    if out is None:
        typer.echo(found.decode(), nl=False)
    else:
        write_atomically(out, found)
        out.chmod(0o644)  # the collector runs as another user


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
    from fedran.federation.ops.decisions import accept_upload, reject_upload

    paths = find_server(folder)
    if reject:
        reject_upload(paths, client, task, reason)
        typer.echo(f"{client}, {task}: rejected; a running server tells the site")
    elif reason:
        raise ValueError("--reason tells a site why its upload is rejected: give --reject too")
    else:
        told = f"{accept_upload(paths, client, task).outcome}; a running server"
        typer.echo(f"{client}, {task}: {told} will send a new classifier")


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


def influence(
    folder: ServerFolder,
    uploads: Annotated[
        bool, typer.Option("--uploads", help="One line per upload instead of one per site.")
    ] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="Confirm every line by replay, which is slow.")
    ] = False,
) -> None:
    """Show the accuracy without each site: a large gain names a site that does harm.

    Needs `validation` in server.toml. The most harmful line is confirmed by
    a replay of all other uploads. With secure sums, a line is a cohort.
    """
    from rich.console import Console

    from fedran.federation.ops.decisions import influence_of_sites
    from fedran.federation.status.terminal import print_influence

    paths = find_server(folder)

    def say(line: str) -> None:
        typer.echo(line, err=True)

    table = influence_of_sites(paths, by_upload=uploads, replay_all=replay, say=say)
    print_influence(table, Console(highlight=False))
