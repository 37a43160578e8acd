"""``fedran federation``: make, run and watch one. Thin: the work is in fedran.federation."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fedran.cli.federation_edge import forward, offer, prepare
from fedran.cli.federation_run import accept, client, down, server, simulate, task, up
from fedran.cli.federation_status import status

app = typer.Typer(
    name="federation",
    help="A federation on Flower: make it, run it, watch it.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def _needs() -> None:
    """A federation on Flower: make it, run it, watch it."""
    try:
        found = find_spec("flwr") is not None
    except ValueError:  # a module that is hidden
        found = False
    if not found:
        raise ImportError("a federation needs Flower: pip install 'fedran[flower]'")


NewFolder = Annotated[Path, typer.Argument(help="A new folder.", show_default=False)]


@app.command()
def init(
    folder: NewFolder,
    sites: Annotated[
        int, typer.Option(help="Sites on this machine, for a trial; 0: a server alone.")
    ] = 2,
    federation: Annotated[str, typer.Option(help="The federation's id.")] = "trial",
    address: Annotated[str, typer.Option(help="Where the server listens.")] = "127.0.0.1:9443",
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address by which sites reach it (for its certificate)."),
    ] = None,
    in_features: Annotated[
        int | None,
        typer.Option(help="Columns of the sites' features. Without: handwritten digits, to try."),
    ] = None,
    out_features: Annotated[int | None, typer.Option(help="Random features.")] = None,
    tasks: Annotated[int, typer.Option(help="Tasks of the digits.")] = 2,
) -> None:
    """Write certificates, keys, roster and configuration for a server and sites."""
    from fedran.federation.ops.scaffold import Trial, make_trial

    width = out_features
    if width is None:
        width = 1024 if in_features is None else 8192
    trial = Trial(federation, sites, address, in_features, width, tasks, tuple(host or ()))
    places = make_trial(folder, trial)
    typer.echo(f"{folder}/server        server.toml, roster.toml, certificates in tls/")
    if places:
        typer.echo(f"{folder}/sites/...     {len(places)} sites: site.toml, keys, data/")
    if in_features is not None:
        typer.echo("say in server.toml, as `source`, what makes the features: sites that mean")
        typer.echo("others are then refused")
    typer.echo("\nnext:")
    if places:
        typer.echo(
            f"  fedran federation up {folder}          # server and sites, in the background"
        )
        name = "task-1" if in_features is None else "TASK"
        typer.echo(f"  fedran federation task {folder} {name} # one task: uploads, then a new head")
        typer.echo(f"  fedran federation status {folder} --web")
        typer.echo(f"  fedran federation down {folder}")
    else:
        typer.echo(f"  fedran federation server {folder}      # in the foreground; or as a service")
        typer.echo("  fedran federation join ...  # at a site, with tls/ca.crt; then add its card")


@app.command()
def join(
    folder: NewFolder,
    federation: Annotated[str, typer.Option(help="The federation's id, as its server says.")],
    client: Annotated[str, typer.Option(help="This site's id.")],
    server: Annotated[str, typer.Option(help="The server, as host:port.")],
    ca: Annotated[Path, typer.Option(help="The server's ca.crt, received by a way you trust.")],
) -> None:
    """Write a site's folder with new keys; its card goes to the server's owner."""
    from fedran.federation.ops.scaffold import CARD, make_site

    make_site(folder, federation=federation, client=client, server=server, ca=ca)
    typer.echo(f"{folder}: site.toml, keys, data/ (put TASK.npz there)")
    typer.echo(f"give {folder / CARD} to the server's owner; it holds nothing secret")
    typer.echo(f"then: fedran federation client {folder}")


@app.command()
def add(
    folder: Annotated[
        Path, typer.Argument(help="The server's folder, or an edge's.", show_default=False)
    ],
    card: Annotated[Path, typer.Argument(help="The site's card.toml.", show_default=False)],
) -> None:
    """Let a site upload and connect, or list a member of an edge; takes effect by itself."""
    from fedran.federation.edge.folder import add_member
    from fedran.federation.ops.enrolment import Card
    from fedran.federation.ops.scaffold import add_site
    from fedran.federation.server.settings import ServerPaths
    from fedran.federation.site.settings import SitePaths

    found = Card.load(card)
    if (folder / "site.toml").is_file():
        add_member(SitePaths.find(folder), found.federation, found.client, found.key)
        typer.echo(f"{found.client} is in members.toml; its uploads go into {folder / 'inbox'}")
        return
    add_site(ServerPaths.find(folder), found)
    typer.echo(f"{found.client} is in the roster; its node may connect within a minute")


@app.command()
def remove(
    folder: Annotated[Path, typer.Argument(help="The server's folder.", show_default=False)],
    client: Annotated[str, typer.Argument(help="The site's id.", show_default=False)],
) -> None:
    """Let a site neither upload nor connect; what it sent before stays in."""
    from fedran.federation.ops.scaffold import remove_site
    from fedran.federation.server.settings import ServerPaths

    remove_site(ServerPaths.find(folder), client)
    typer.echo(f"{client} is out of the roster; what it sent before stays in the head")


@app.command()
def renew(
    folder: Annotated[Path, typer.Argument(help="The server's folder.", show_default=False)],
    host: Annotated[
        list[str] | None, typer.Option(help="Names for it (default: those it has).")
    ] = None,
) -> None:
    """Make a new server certificate of the same authority; restart the server afterwards."""
    from fedran.federation.ops.tls import days_left, renew_server
    from fedran.federation.server.settings import ServerPaths

    tls = ServerPaths.find(folder).tls
    renew_server(tls, host)
    typer.echo(f"{tls / 'server.crt'}: good for {days_left(tls / 'server.crt'):.0f} days")


app.command()(server)
app.command()(client)
app.command()(up)
app.command()(down)
app.command()(task)
app.command()(simulate)
app.command()(status)
app.command()(accept)
app.command()(offer)
app.command()(prepare)
app.command()(forward)
