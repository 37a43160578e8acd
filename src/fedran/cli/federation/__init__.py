"""``fedran federation``: create, run and watch a federation. The work is in fedran.federation."""

from __future__ import annotations

from importlib.util import find_spec

import typer

from fedran.cli.federation import create, run, site, store, watch
from fedran.core.errors import MissingExtra

SUMMARY = "Create, run and watch a federation of sites on Flower."
COMMANDS = {
    "Create a federation": (create.init, create.join, create.add, create.remove, create.renew),
    "At a site": (site.check, site.revise),
    "Run it": (run.server, run.client, run.up, run.down, run.task, run.close, run.simulate),
    "Watch it": (watch.status, watch.accept, watch.rollback),
    "Keep its data": (store.forget, store.backup, store.restore, store.verify),
}
"""The commands in the groups of the help page."""

app = typer.Typer(name="federation", help=SUMMARY, no_args_is_help=True, add_completion=False)


@app.callback()
def _require_extra() -> None:
    """Flower itself is only needed where its programs are started."""
    if find_spec("cryptography") is None:
        raise MissingExtra("a federation needs cryptography and Flower", "flower")


for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
