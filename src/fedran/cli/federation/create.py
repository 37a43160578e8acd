"""Commands that create a federation and say who belongs to it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from fedran.cli.federation.arguments import (
    Client,
    NewFolder,
    Privacy,
    ServerFolder,
    find_server,
    find_site,
    parse_label,
)
from fedran.core.labels import ordered
from fedran.data.rows import LABEL


def init(
    folder: NewFolder,
    sites: Annotated[
        int | None,
        typer.Option(
            help="Number of sites on this machine; 0 creates a server alone. Default: 2, or 3 "
            "with --privacy secure."
        ),
    ] = None,
    federation: Annotated[
        str | None, typer.Option(help="Id of the federation. Default: the name of the folder.")
    ] = None,
    address: Annotated[
        str, typer.Option(help="Address on which the server listens.")
    ] = "127.0.0.1:9443",
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or address by which sites reach the server, for its certificate. "
            "May be repeated."
        ),
    ] = None,
    in_features: Annotated[
        int | None,
        typer.Option(
            help="Columns of the sites' features. Without it, the sites get sample data: "
            "handwritten digits."
        ),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(
            help="A feature file of `fedran features`, or a table, instead of --in-features."
        ),
    ] = None,
    label: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column of labels in tables, also of sites.")
    ] = LABEL,
    backbone: Annotated[
        str | None,
        typer.Option(help="A backbone as in `fedran features`, instead of --in-features."),
    ] = None,
    offline_ca: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the key of the certificate authority, for example on a removable "
            "medium. Default: FOLDER/authority, to be moved to a safe place."
        ),
    ] = None,
    privacy: Annotated[
        Privacy,
        typer.Option(
            help="secure: the server learns only sums over three or more sites. dp: these sums are "
            "differentially private too."
        ),
    ] = "none",
    epsilon: Annotated[
        float | None, typer.Option(help="The budget of every row. Needed for --privacy dp.")
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Labels that may occur, separated by commas. A number is an integer label, "
            "'\"1\"' is text. Needed for --privacy secure or dp, except with sample data or "
            "--features."
        ),
    ] = None,
    trusted: Annotated[
        bool,
        typer.Option(
            "--trusted",
            help="A class counts that one site alone has sent. Otherwise it waits for a second "
            "site. Default with sites on this machine.",
        ),
    ] = False,
) -> None:
    """Create a server, and sites to try it: configuration, keys, certificates."""
    from fedran.federation.ops import scaffold

    given = [value for value in (in_features, features, backbone) if value is not None]
    if len(given) > 1:
        raise ValueError("expected one of --in-features, --features and --backbone, got several")
    settings: dict[str, Any] = {"label_column": label}
    if in_features is not None:
        settings["in_features"] = in_features
    elif features is not None:
        settings |= scaffold.settings_of_file(features, label, privacy)
    elif backbone is not None:
        settings |= scaffold.settings_of_backbone(backbone)
    if labels := [parse_label(part.strip()) for part in (classes or "").split(",") if part.strip()]:
        settings["classes"] = ordered(labels)
    if trusted:
        settings["trusted"] = True
    federation = federation or folder.resolve().name
    made = scaffold.make_federation(
        folder,
        federation=federation,
        n_sites=(2 if privacy == "none" else 3) if sites is None else sites,
        address=address,
        hosts=host or (),
        offline_ca=offline_ca,
        privacy=privacy,
        epsilon=epsilon,
        **settings,
    )
    lines = [f"{folder}/server        server.toml, roster.toml, certificates in tls/"]
    place = offline_ca or folder / scaffold.AUTHORITY
    lines += [f"{place}     ca.key, which only `renew` needs: move it to a safe place"]
    if made:
        lines += [f"{folder}/sites/...     {len(made)} sites: site.toml, keys, data/"]
    lines += ["Before the first task, read server.toml: `kind` and `source` must be right for"]
    lines += ["all sites, and `min_group` decides which means leave them."]
    if privacy != "none":
        lines += ["A task has one secure sum. Rows of a site that misses it need a new task id."]
    lines += ["", "next:"]
    quoted = shlex.quote(str(folder))
    if made:
        task = "TASK" if given else "task-1"
        lines += [f"  fedran federation up {quoted}          # server and sites in the background"]
        lines += [f"  fedran federation task {quoted} {task} # one task: uploads, then a new head"]
        lines += [f"  fedran federation status {quoted} --web"]
        lines += [f"  fedran federation down {quoted}"]
    else:
        lines += [f"  fedran federation server {quoted}      # in the foreground, or as a service"]
        joining = f"fedran federation join ... --federation {shlex.quote(federation)}"
        lines += [f"  {joining}  # at each site, with tls/ca.crt"]
        lines += [f"  fedran federation add {quoted} FILE    # with the site's enrolment.toml"]
    typer.echo("\n".join(lines))


def join(
    folder: NewFolder,
    federation: Annotated[str, typer.Option(help="Id of the federation.")],
    client: Annotated[str, typer.Option(help="Id of this site.")],
    server: Annotated[str, typer.Option(help="Address of the server, as host:port.")],
    ca: Annotated[Path, typer.Option(help="The server's ca.crt, from a source you trust.")],
    privacy: Annotated[
        Privacy,
        typer.Option(
            help="secure: take part only in secure sums, send nothing else. dp: only in sums that "
            "are differentially private."
        ),
    ] = "none",
) -> None:
    """Create a site: configuration, keys, and an enrolment file for the server's owner."""
    from fedran.federation.ops.enrolment import ENROLMENT_FILE
    from fedran.federation.ops.scaffold import make_site

    enrolment = make_site(
        folder, federation=federation, client=client, server=server, ca=ca, privacy=privacy
    )
    typer.echo(f"{folder}: site.toml, keys, data/ (put TASK.npz, .csv or .parquet there)")
    typer.echo(f"fingerprint {enrolment.fingerprint}: `add` at the server prints the same; compare")
    typer.echo("the two by telephone")
    typer.echo(f"give {folder / ENROLMENT_FILE} to the server's owner; it contains no secret")
    if privacy == "dp":
        limit = find_site(folder).settings().max_epsilon
        typer.echo(f"no task may spend more than `max_epsilon` in site.toml, which is {limit:g}")
    quoted = shlex.quote(str(folder))
    if privacy != "none":
        typer.echo(f"when all sites are added: fedran federation check {quoted} --roster ROSTER")
    typer.echo(f"then: fedran federation client {quoted}")


def add(
    folder: ServerFolder,
    enrolment: Annotated[
        Path, typer.Argument(help="enrolment.toml of the site.", show_default=False)
    ],
    replace_keys: Annotated[
        bool, typer.Option("--replace", help="Replace the keys of a known site.")
    ] = False,
) -> None:
    """Admit a site to the server. No restart is needed."""
    from fedran.federation.ops.enrolment import Enrolment, add_site
    from fedran.federation.protocol.roster import Roster
    from fedran.federation.secure.site.pinning import roster_fingerprint

    site = Enrolment.load(enrolment)
    paths = find_server(folder)
    add_site(paths, site, replace_keys=replace_keys)
    typer.echo(f"{site.client} is in the roster; its node may connect within a minute")
    typer.echo(f"fingerprint {site.fingerprint}: the site's `join` printed the same, or these are")
    typer.echo("not its keys: compare by telephone, and `remove` it if they differ")
    if paths.settings().privacy != "none":
        typer.echo(f"roster {roster_fingerprint(Roster.load(paths.roster).clients)}")
        typer.echo("every site must compare and pin it: `fedran federation check SITE`")


def remove(folder: ServerFolder, client: Client) -> None:
    """End a site's membership. Its earlier uploads stay in the classifier: see `forget`."""
    from fedran.federation.ops.enrolment import remove_site

    cut = remove_site(find_server(folder), client)
    how = "is disconnected" if cut else "is refused as soon as the server runs"
    typer.echo(
        f"{client} is removed from the roster and {how}. Its earlier uploads stay in the "
        f"classifier; `{shlex.join(['fedran', 'federation', 'forget', str(folder), client])}` "
        "removes them"
    )


def renew(
    folder: ServerFolder,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name in the certificate. May be repeated. Default: the old names."),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(help="Folder that holds ca.key. Default: `authority` beside the server's."),
    ] = None,
) -> None:
    """Renew the server's certificate. A running server loads it; sites need nothing new."""
    from fedran.federation.ops.scaffold import AUTHORITY
    from fedran.federation.protocol.keys import days_left, renew_server
    from fedran.federation.protocol.lockfile import lock_holder

    paths = find_server(folder)
    renew_server(paths.tls, ca or paths.folder.parent / AUTHORITY, host)
    new = paths.tls / "server.crt"
    typer.echo(f"{new}: valid for {days_left(new):.0f} days")
    if lock_holder(paths.folder / "log") is not None:
        typer.echo("the running server loads it when no task is open; sites connect again")
    typer.echo("a proxy has copies of server.crt and server.key: copy both again (as a rule to")
    typer.echo("/etc/fedran/tls), then `nginx -s reload`; with compose: `restart proxy`")
