"""``fedran federation``: create, run and watch a federation. The work is in fedran.federation."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedran.core.errors import MissingExtra
from fedran.core.features import Kind
from fedran.wire.sizes import human_bytes, parse_bytes

MessageKind = Literal["summary", "mixture"]
Privacy = Literal["none", "secure", "dp"]
SUMMARY = "Create, run and watch a federation of sites on Flower."
SETUP, RUN, WATCH, EDGE = "Create a federation", "Run it", "Watch it", "Edges"
STORE, SITE = "Keep its data", "At a site"
"""Groups of commands on the help page."""
app = typer.Typer(name="federation", help=SUMMARY, no_args_is_help=True, add_completion=False)

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
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="No encryption, no authentication. Never in production."),
]


@app.callback()
def _require_flower() -> None:
    try:
        found = find_spec("flwr") is not None
    except ValueError:  # sys.modules holds a module without __spec__
        found = False
    if not found:
        raise MissingExtra("a federation needs Flower", "flower")


@app.command(rich_help_panel=SETUP)
def init(
    folder: NewFolder,
    sites: Annotated[
        int | None,
        typer.Option(
            help="Number of sites on this machine; 0 creates a server alone. Default: 2, or 3 "
            "with --privacy secure."
        ),
    ] = None,
    federation: Annotated[str, typer.Option(help="Id of the federation.")] = "trial",
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
    out_features: Annotated[
        int | None,
        typer.Option(help="Number of random features. Default: 8192; 1024 for the sample data."),
    ] = None,
    tasks: Annotated[int, typer.Option(help="Number of tasks in the sample data.")] = 2,
    features: Annotated[
        Path | None,
        typer.Option(help="A feature file of `fedran features`, instead of --in-features."),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(help="A backbone as in `fedran features`, instead of --in-features."),
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option(
            help="Random features: hellinger if no feature is ever negative, cosine for any "
            "sign, relu as in the paper. Default: what file or backbone declare, else cosine."
        ),
    ] = None,
    message: Annotated[
        MessageKind,
        typer.Option(help="What sites send: summary, or mixture (small, for any width)."),
    ] = "summary",
    offline_ca: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the key of the certificate authority, for example on a removable "
            "medium. The server does not need it."
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
            help="Labels that may occur, separated by commas; whole numbers are numbers. "
            "Needed for --privacy secure or dp, except with sample data or --features."
        ),
    ] = None,
) -> None:
    """Create a server, and sites to try it: configuration, keys, certificates."""
    from fedran.federation.ops.scaffold import (
        DeclaredFeatures,
        FederationOptions,
        labels_of_file,
        make_federation,
        parse_labels,
    )

    given = [value for value in (in_features, features, backbone) if value is not None]
    if len(given) > 1:
        raise ValueError("expected one of --in-features, --features and --backbone, got several")
    declared = None
    if in_features is not None:
        declared = DeclaredFeatures(in_features)
    elif features is not None:
        declared = DeclaredFeatures.of_file(features)
    elif backbone is not None:
        declared = DeclaredFeatures.of_backbone(backbone)
    if kind is not None:
        if declared is None:
            raise ValueError("--kind is for the sites' own features: name them with --in-features")
        declared = replace(declared, kind=kind)
    labels = parse_labels(classes) if classes else ()
    if features is not None and not labels and privacy != "none":
        labels = labels_of_file(features)
    options = FederationOptions(
        federation,
        (2 if privacy == "none" else 3) if sites is None else sites,
        address,
        declared,
        out_features,
        tasks,
        tuple(host or ()),
        message,
        offline_ca,
        privacy,
        labels,
        epsilon,
    )
    made = make_federation(folder, options)
    lines = [f"{folder}/server        server.toml, roster.toml, certificates in tls/"]
    if made:
        lines += [f"{folder}/sites/...     {len(made)} sites: site.toml, keys, data/"]
    if in_features is not None:
        lines += ["Set `source` in server.toml to what computes the features. Sites with other"]
        lines += ["features are then refused."]
    lines += ["", "next:"]
    if made:
        task = "TASK" if given else "task-1"
        lines += [f"  fedran federation up {folder}          # server and sites in the background"]
        lines += [f"  fedran federation task {folder} {task} # one task: uploads, then a new head"]
        lines += [f"  fedran federation status {folder} --web"]
        lines += [f"  fedran federation down {folder}"]
    else:
        lines += [f"  fedran federation server {folder}      # in the foreground, or as a service"]
        lines += ["  fedran federation join ...  # at each site, with tls/ca.crt"]
        lines += [f"  fedran federation add {folder} FILE    # with the site's enrolment.toml"]
    typer.echo("\n".join(lines))


@app.command(rich_help_panel=SETUP)
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

    make_site(folder, federation=federation, client=client, server=server, ca=ca, privacy=privacy)
    typer.echo(f"{folder}: site.toml, keys, data/ (put TASK.npz there)")
    typer.echo(f"give {folder / ENROLMENT_FILE} to the server's owner; it contains no secret")
    if privacy != "none":
        typer.echo(f"when all sites are added: fedran federation roster {folder} --file ROSTER")
    typer.echo(f"then: fedran federation client {folder}")


@app.command(rich_help_panel=SETUP)
def add(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the server, or of an edge.", show_default=False)
    ],
    enrolment: Annotated[
        Path, typer.Argument(help="enrolment.toml of the site.", show_default=False)
    ],
    replace_keys: Annotated[
        bool, typer.Option("--replace", help="Replace the keys of a known site.")
    ] = False,
    edge: Annotated[
        str | None,
        typer.Option(help="At the server: the edge of which the site is a member."),
    ] = None,
) -> None:
    """Admit a site to the server, or a member to an edge. No restart is needed."""
    from fedran.federation.edge.folder import add_member
    from fedran.federation.ops.enrolment import Enrolment, add_edge_member, add_site
    from fedran.federation.ops.trust import show_roster
    from fedran.federation.server.settings import ServerPaths
    from fedran.federation.site.settings import SitePaths

    site = Enrolment.load(enrolment)
    if (folder / "site.toml").is_file():
        place = SitePaths.find(folder)
        add_member(place, site.federation, site.client, site.key, replace_key=replace_keys)
        typer.echo(f"{site.client} is in members.toml; copy its uploads to {folder / 'inbox'}")
        return
    if edge is not None:
        add_edge_member(ServerPaths.find(folder), site, edge, replace_key=replace_keys)
        typer.echo(f"{site.client} is a member of {edge}, which may forward its uploads")
        return
    paths = ServerPaths.find(folder)
    add_site(paths, site, replace_keys=replace_keys)
    typer.echo(f"{site.client} is in the roster; its node may connect within a minute")
    if paths.settings().privacy != "none":
        typer.echo(f"roster {show_roster(folder).fingerprint}")
        typer.echo("every site must compare and pin it: `fedran federation roster SITE --trust`")


@app.command(rich_help_panel=SETUP)
def roster(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a server, federation or site.", show_default=False)
    ],
    trust: Annotated[
        str | None,
        typer.Option(
            help="At a site: pin the roster with this fingerprint, which the server's owner read "
            "to you."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="At a site: the server's roster.toml. Default: what the server showed."),
    ] = None,
) -> None:
    """Show the roster of a federation with secure sums, and its fingerprint.

    The owner of the server and each site compare the fingerprint by
    telephone. A site takes part only with the roster that it has pinned. The
    exit code is 1 at a site that has not pinned the roster.
    """
    from fedran.federation.ops.trust import show_roster, trust_roster

    found = trust_roster(folder, trust, file) if trust else show_roster(folder, file)
    for client, key in sorted(found.clients.items()):
        mark = "  CHANGED" if found.pinned is False and client in found.changed else ""
        typer.echo(f"{client:20} {key}{mark}")
    for client in sorted(set(found.changed) - found.clients.keys()):
        typer.echo(f"{client:20} REMOVED")
    typer.echo(f"fingerprint {found.fingerprint}")
    if found.pinned:
        typer.echo("this site has pinned it")
    elif found.pinned is False:
        typer.echo(
            "this site has NOT pinned it: call the server's owner, compare the fingerprint, then\n"
            f'  fedran federation roster {folder} --trust "FINGERPRINT"'
        )
        raise typer.Exit(1)


@app.command(rich_help_panel=SITE)
def repeat(folder: SiteFolder, task: Task) -> None:
    """Agree to another secure sum of a task whose sum this site has revealed.

    Needed after another site was forgotten, or after this site corrected its
    rows. Whoever has seen both sums knows the difference between them.
    """
    from fedran.federation.ops.trust import allow_repeat
    from fedran.federation.site.settings import SitePaths

    allow_repeat(SitePaths.find(folder), task)
    typer.echo(f"this site takes part in one more sum of {task}")


@app.command(rich_help_panel=SITE)
def rekey(folder: SiteFolder) -> None:
    """Make new keys for a site whose keys were lost or stolen.

    The site must not run. The server's owner then runs `add --replace`.
    """
    from fedran.federation.ops.enrolment import ENROLMENT_FILE, make_new_keys
    from fedran.federation.site.settings import SitePaths

    make_new_keys(SitePaths.find(folder))
    typer.echo(f"give {folder / ENROLMENT_FILE} to the server's owner, who runs:")
    typer.echo("  fedran federation add SERVER enrolment.toml --replace")


@app.command(rich_help_panel=SETUP)
def remove(folder: ServerFolder, client: Client) -> None:
    """End a site's membership. Its earlier uploads stay in the classifier: see `forget`."""
    from fedran.federation.ops.enrolment import remove_site
    from fedran.federation.server.settings import ServerPaths

    remove_site(ServerPaths.find(folder), client)
    typer.echo(
        f"{client} is removed from the roster. Its earlier uploads stay in the classifier; "
        f"`fedran federation forget {folder} {client}` removes them"
    )


@app.command(rich_help_panel=SETUP)
def renew(
    folder: ServerFolder,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name in the certificate. May be repeated. Default: the old names."),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(help="Folder that holds ca.key, if `init --offline-ca` put it elsewhere."),
    ] = None,
) -> None:
    """Renew the server's certificate. Restart the server afterwards; sites need nothing new."""
    from fedran.federation.ops.keys import days_left, renew_server
    from fedran.federation.server.settings import ServerPaths

    tls = ServerPaths.find(folder).tls
    renew_server(tls, host, ca)
    typer.echo(f"{tls / 'server.crt'}: valid for {days_left(tls / 'server.crt'):.0f} days")


@app.command(rich_help_panel=RUN)
def server(folder: ServerFolder, insecure: Insecure = False) -> None:
    """Run a server in the foreground until Ctrl-C."""
    from fedran.federation.ops.services import run_server
    from fedran.federation.server.settings import ServerPaths

    run_server(ServerPaths.find(folder), insecure=insecure, say=typer.echo)


@app.command(rich_help_panel=RUN)
def client(folder: SiteFolder, insecure: Insecure = False) -> None:
    """Run a site in the foreground until Ctrl-C."""
    from fedran.federation.ops.services import run_site
    from fedran.federation.site.settings import SitePaths

    run_site(SitePaths.find(folder), insecure=insecure, say=typer.echo)


@app.command(rich_help_panel=RUN)
def up(folder: FederationFolder, insecure: Insecure = False) -> None:
    """Start a server and its sites on this machine in the background."""
    from fedran.federation.ops.background import start_federation

    start_federation(folder, insecure=insecure, say=typer.echo)


@app.command(rich_help_panel=RUN)
def down(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a federation, server or site.", show_default=False)
    ],
) -> None:
    """Stop the server and the sites that run in a folder."""
    from fedran.federation.ops.background import stop_federation

    if not stop_federation(folder, say=typer.echo):
        typer.echo("nothing is running here")


@app.command(rich_help_panel=RUN)
def task(
    folder: ServerFolder,
    task: Task,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            help="A class that uploads may contain from this task on, with new_classes = 'task'. "
            "A number is an integer label, '\"1\"' is text. May be repeated.",
        ),
    ] = None,
) -> None:
    """Run a task: collect uploads, solve the classifier, send it to the sites.

    The exit code is 1 if fewer than `min_clients` sites took part.
    """
    from fedran.federation.ops.tasks import run_task
    from fedran.federation.server.settings import ServerPaths

    labels = [parse_label(text) for text in classes or ()]
    if not run_task(ServerPaths.find(folder), task, classes=labels, say=typer.echo).successful:
        raise typer.Exit(1)


def parse_label(text: str) -> str | int:
    """A label of the command line: an integer, a text in double quotes, or any other text.

    >>> parse_label("3"), parse_label('"3"'), parse_label("cat")
    (3, '3', 'cat')
    """
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if type(found) is int or isinstance(found, str) else text


@app.command(rich_help_panel=RUN)
def simulate(
    folder: FederationFolder,
    tasks: Annotated[
        list[str], typer.Argument(help="Ids of the tasks, in order.", show_default=False)
    ],
    cpus: Annotated[float, typer.Option(min=0.1, help="Cores per site.")] = 1.0,
) -> None:
    """Run tasks over all sites of a folder in Flower's simulation (Ray).

    The exit code is 1 if fewer than `min_clients` sites took part in a task.
    """
    from fedran.federation.ops.tasks import simulate as run

    if not all(result.successful for result in run(folder, tasks, cpus=cpus, say=typer.echo)):
        raise typer.Exit(1)


@app.command(rich_help_panel=WATCH)
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
    from fedran.federation.status.terminal import print_status

    if as_json and web:
        raise ValueError("--json and --web exclude each other; give one of them")
    if (folder / "site.toml").is_file():
        from fedran.federation.site.report import read_site
        from fedran.federation.site.settings import SitePaths
        from fedran.federation.status.site_terminal import print_site

        if web:
            raise ValueError("--web shows a server; the status of a site is text or --json")
        report = read_site(SitePaths.find(folder))
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


@app.command(rich_help_panel=WATCH)
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


@app.command(rich_help_panel=SITE)
def check(
    folder: SiteFolder,
    task: Task,
    offer: Annotated[
        Path | None,
        typer.Option(help="The server's offer as a file. Default: the last one that came."),
    ] = None,
) -> None:
    """Check a task's rows before they are sent: width, type, NaN, sign, scale, class names.

    The exit code is 1 if the site or the server would refuse the rows.
    """
    from fedran.federation.edge.folder import read_offer
    from fedran.federation.site.check import check_task
    from fedran.federation.site.settings import SitePaths

    given = None if offer is None else read_offer(offer)
    findings = check_task(SitePaths.find(folder), task, given)
    for finding in findings:
        typer.echo(f"{finding.level}: {finding.text}")
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


@app.command(rich_help_panel=SITE)
def revise(folder: SiteFolder, task: Task) -> None:
    """Replace the upload of a task by one of its present rows, to withdraw rows or a class.

    The site sends it with the next contact. The server rebuilds its state without the old one.
    """
    from fedran.federation.edge.folder import read_offer
    from fedran.federation.protocol.lockfile import locked
    from fedran.federation.site.settings import SitePaths
    from fedran.federation.site.upload import Site

    paths = SitePaths.find(folder)
    settings = paths.settings()
    state = paths.folder / settings.state
    offer = replace(read_offer(state / "offer.json"), task=task, earlier=())
    with locked(state / "outbox", settings.seconds):
        blob = Site.load(paths.settings_file).revise(offer)
    typer.echo(f"the revised upload for {task} ({human_bytes(len(blob))}) is sent at next contact")


@app.command(rich_help_panel=SITE)
def doctor(folder: SiteFolder, insecure: Insecure = False) -> None:
    """Examine a site: keys, data, disk, DNS, TLS, clock. Every problem has a remedy.

    The exit code is 1 if there is a problem.
    """
    from fedran.federation.site.doctor import examine
    from fedran.federation.site.settings import SitePaths

    checks = examine(SitePaths.find(folder), insecure=insecure)
    for found in checks:
        typer.echo(f"{'ok' if found.ok else 'PROBLEM':8}{found.name}: {found.text}")
        if found.remedy:
            typer.echo(f"        {found.remedy}")
    if not all(found.ok for found in checks):
        raise typer.Exit(1)


@app.command(rich_help_panel=WATCH)
def accept(folder: ServerFolder, client: Client, task: Task) -> None:
    """Accept an upload that is in quarantine because it is unusual."""
    from fedran.federation.ops.tasks import accept_upload
    from fedran.federation.server.settings import ServerPaths

    receipt = accept_upload(ServerPaths.find(folder), client, task)
    typer.echo(f"{client}, {task}: {receipt.outcome}; a running server will send a new classifier")


@app.command(rich_help_panel=WATCH)
def reject(
    folder: ServerFolder,
    client: Client,
    task: Task,
    reason: Annotated[str, typer.Option(help="A sentence for the site.")] = "",
) -> None:
    """Reject an upload that is in quarantine. The site may correct its rows and send another."""
    from fedran.federation.ops.tasks import reject_upload
    from fedran.federation.server.settings import ServerPaths

    reject_upload(ServerPaths.find(folder), client, task, reason)
    typer.echo(f"{client}, {task}: rejected; a running server tells the site")


@app.command(rich_help_panel=WATCH)
def rollback(folder: ServerFolder, task: Task) -> None:
    """Put the classifier after an earlier task back into service; `release` ends this."""
    from fedran.federation.ops.rollback import roll_back
    from fedran.federation.server.settings import ServerPaths

    found = roll_back(ServerPaths.find(folder), task)
    same = "the same bytes as then" if found.identical else "without what was forgotten or revised"
    typer.echo(f"classifier {found.digest[:12]} after {task} is in service again ({same})")
    typer.echo("a running server sends it; newer ones wait for `fedran federation release`")


@app.command(rich_help_panel=WATCH)
def release(folder: ServerFolder) -> None:
    """Put a classifier that was held back into service."""
    from fedran.federation.ops.tasks import release_head
    from fedran.federation.server.settings import ServerPaths

    digest = release_head(ServerPaths.find(folder))
    typer.echo(f"classifier {digest[:12]} is in service; a running server will send it")


@app.command(rich_help_panel=WATCH)
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

    from fedran.federation.ops.tasks import influence_of_sites
    from fedran.federation.server.settings import ServerPaths
    from fedran.federation.status.terminal import print_influence

    paths = ServerPaths.find(folder)

    def say(line: str) -> None:
        typer.echo(line, err=True)

    table = influence_of_sites(paths, by_upload=uploads, replay_all=replay, say=say)
    print_influence(table, Console(highlight=False))


@app.command(rich_help_panel=RUN)
def rebuild(
    folder: ServerFolder,
    out_features: Annotated[int, typer.Option(help="The new number of random features.")],
) -> None:
    """Rebuild the classifier at another width from stored mixtures, without asking the sites."""
    from fedran.federation.ops.rebuild import rebuild as run
    from fedran.federation.server.settings import ServerPaths

    count = run(ServerPaths.find(folder), out_features)
    typer.echo(
        f"{count} mixtures lifted to {out_features} random features; "
        "a running server will send the new classifier"
    )


@app.command(rich_help_panel=STORE)
def forget(
    folder: ServerFolder,
    client: Client,
    task: Annotated[str | None, typer.Option(help="Only this task. Default: all tasks.")] = None,
) -> None:
    """Remove a site's uploads from the classifier, and rebuild it from the others.

    The site stays a member: `remove` ends that. A signed record says what was removed.
    """
    from fedran.federation.ops.forget import forget as run
    from fedran.federation.server.settings import ServerPaths

    found, record = run(ServerPaths.find(folder), client, task)
    for gone in found.tombstones:
        typer.echo(f"removed: {gone.client}, {gone.task} {gone.digest[:12]}")
    for total in found.sums:
        typer.echo(
            f"removed: {total.task} of {total.client}, which contained it; the edge is asked for "
            "the sum without it"
        )
    typer.echo(
        f"{len(found.heads)} earlier classifiers were made with them; record: {record}\n"
        "a running server will send a new classifier"
    )
    if ServerPaths.find(folder).settings().privacy != "none":
        typer.echo(
            "the sums of its cohorts are deleted, with the rows of all their members; ask the "
            "other members to run `fedran federation repeat`, then run the task again"
        )


@app.command(rich_help_panel=STORE)
def backup(
    folder: ServerFolder,
    destination: Annotated[Path, typer.Argument(help="A new folder.", show_default=False)],
) -> None:
    """Copy the database, settings, roster and nodes to a folder, also while the server runs."""
    from fedran.federation.ops.maintenance import back_up
    from fedran.federation.server.settings import ServerPaths

    back_up(ServerPaths.find(folder), destination)
    typer.echo(f"{destination}: verified copy; private keys (tls/, *.key) are not in it")


@app.command(rich_help_panel=STORE)
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
    from fedran.federation.server.settings import ServerPaths

    again = run(ServerPaths.find(folder), backup, record or [])
    for gone in again:
        typer.echo(f"forgotten again: {gone.client}, {gone.task}")
    typer.echo("restored; sites will send again what the backup does not contain")


@app.command(rich_help_panel=STORE)
def verify(folder: ServerFolder) -> None:
    """Check every byte of the database against its checksums. The exit code is 1 for damage."""
    from fedran.federation.ops.maintenance import verify_store
    from fedran.federation.server.settings import ServerPaths

    found = verify_store(ServerPaths.find(folder))
    for problem in found:
        typer.echo(problem)
    if found:
        raise typer.Exit(1)
    typer.echo("the database is what was written")


@app.command(rich_help_panel=STORE)
def repair(folder: ServerFolder) -> None:
    """Save what is intact of a damaged database, and say what is lost."""
    from fedran.federation.ops.maintenance import repair as run
    from fedran.federation.server.settings import ServerPaths

    lost = run(ServerPaths.find(folder))
    if lost is None:
        typer.echo("nothing is damaged; nothing was changed")
        return
    for loss in lost:
        typer.echo(f"lost: {loss}")
    typer.echo("the rest is saved; sites will send again what they still have")


@app.command(rich_help_panel=EDGE)
def offer(folder: ServerFolder, task: Task) -> None:
    """Print the server's request for a task as JSON, for `prepare` at members of an edge."""
    from fedran.federation.protocol.identity import check_task
    from fedran.federation.server.settings import ServerPaths

    typer.echo(json.dumps(ServerPaths.find(folder).settings().offer(check_task(task)).fields()))


@app.command(rich_help_panel=EDGE)
def prepare(
    folder: SiteFolder,
    task: Task,
    offer: Annotated[
        Path, typer.Option(help="File with the output of `offer`, or the edge's state/offer.json.")
    ],
) -> None:
    """Make a site's upload without a connection, as a file for an edge."""
    from fedran.federation.edge.folder import prepare as make
    from fedran.federation.site.settings import SitePaths

    made = make(SitePaths.find(folder), task, offer)
    size = human_bytes(made.path.stat().st_size)
    what = "made now" if made.new else "made earlier, used again"
    typer.echo(f"{made.path} ({size}, {what}); copy it to inbox/ in the edge's folder")
    if made.withheld:
        shown = ", ".join(f"{label!r} ({n} rows)" for label, n in made.withheld)
        typer.echo(f"withheld, because of too few rows: {shown}")
    if made.unlabelled:
        typer.echo(f"{made.unlabelled} rows have no label")


@app.command(rich_help_panel=EDGE)
def forward(
    folder: Annotated[Path, typer.Argument(help="Folder of the edge.", show_default=False)],
    task: Task,
    envelopes: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Uploads of members, besides inbox/*.envelope in FOLDER.", show_default=False
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Size limit of the sum, e.g. 2MB. Default: all columns in float32."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="A member to leave out. May be repeated.")
    ] = None,
) -> None:
    """Add up the new uploads of an edge's members and send the sum with the next task.

    The server refuses a sum with an upload that it already has. Then delete
    the sum's .envelope and .receipt in the outbox, and forward again with
    --without and the name of that member.
    """
    from fedran.federation.edge.folder import forward as run
    from fedran.federation.site.settings import SitePaths

    size = None if budget is None else parse_bytes(budget)
    run(SitePaths.find(folder), task, envelopes or [], size, without or [], typer.echo)
