"""Commands that keep the server's data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedran.cli.federation.arguments import (
    Client,
    ServerFolder,
    Yes,
    find_server,
    require_agreement,
)
from fedran.core.errors import shortened


def forget(
    folder: ServerFolder,
    client: Client,
    task: Annotated[str | None, typer.Option(help="Only this task. Default: all tasks.")] = None,
    yes: Yes = False,
) -> None:
    """Remove a site's uploads from the classifier, and rebuild it from the others.

    The site stays a member: `remove` ends that. A signed record says what
    was removed. A secure sum ends with the rows of all its members. The
    command first says what will be lost, and asks. The exit code is 1 if
    nobody agreed.
    """
    from fedran.federation.ops.decisions import forget as run
    from fedran.federation.ops.decisions import preview_forget
    from fedran.federation.server.head.head import HEAD

    paths = find_server(folder)
    meant, ended = preview_forget(paths, client, task)
    tasks = shortened(list(dict.fromkeys(t.task for t in meant.tombstones)), 12)
    again = "" if all(t.sum_number for t in meant.tombstones) else ", and it cannot send them again"
    typer.echo(f"the rows of {client} in {tasks} leave the classifier{again}")
    if ended:
        typer.echo("these secure sums end, with the rows of all their members:")
        for old in ended:
            typer.echo(f"  {old.task}, {old.client}: {', '.join(site for site, _ in old.members)}")
        typer.echo("the classifier loses these rows, and the classes that only they have,")
        least = paths.settings().min_sites
        typer.echo(f"until at least {least} sites add them again, under a new task id;")
        typer.echo("whoever has seen both sums then knows the difference between them")
    require_agreement(yes)
    found, record = run(paths, client, task)
    for gone in found.tombstones:
        typer.echo(f"removed: {gone.client}, {gone.task} {gone.digest[:12]}".rstrip())
    for total in found.sums:
        typer.echo(f"removed: {total.task} of {total.client}, which contained it")
    typer.echo(f"earlier classifiers made with them: {len(found.heads)}; record: {record}")
    if (paths.state / HEAD).is_file():
        typer.echo("a running server will send a new classifier")
    else:
        typer.echo("no upload is left to make a classifier of; sites still have the last one")


def backup(
    folder: ServerFolder,
    destination: Annotated[Path, typer.Argument(help="A new folder.", show_default=False)],
) -> None:
    """Copy the database, settings, roster and nodes to a folder, also while the server runs."""
    from fedran.federation.ops.maintenance import back_up

    back_up(find_server(folder), destination)
    typer.echo(f"{destination}: verified copy; private keys (tls/, *.key) are not in it")


def restore(
    folder: ServerFolder,
    backup: Annotated[Path, typer.Argument(help="Folder of the backup.", show_default=False)],
    record: Annotated[
        list[Path] | None,
        typer.Option(help="A signed record of `forget`, newer than the backup. May be repeated."),
    ] = None,
) -> None:
    """Replace the database by that of a backup. What was forgotten since stays forgotten."""
    from fedran.federation.ops.maintenance import restore as run

    again = run(find_server(folder), backup, record or [])
    for gone in again:
        typer.echo(f"forgotten again: {gone.client}, {gone.task}")
    typer.echo("restored; sites will send again what the backup does not contain")


def verify(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder of a server, or a signed record.", show_default=False),
    ],
) -> None:
    """Check the whole database and every upload in it, or the signature of a record of a removal.

    The exit code is 1 for damage. A record is from the server whose key is printed.
    """
    import json

    from fedran.federation.ops.maintenance import verify_store
    from fedran.federation.server.store.forgetting import check_record

    if folder.is_file():
        content = folder.read_text()
        check_record(content)
        typer.echo(f"signed by {json.loads(content)['key']}")
        typer.echo(json.dumps(json.loads(content)["record"], indent=1))
        return
    found = verify_store(find_server(folder))
    for problem in found:
        typer.echo(problem)
    if found:
        raise typer.Exit(1)
    typer.echo("the database is what was written")
