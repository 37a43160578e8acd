"""The Flower app of the server: one run is one task.

Settings come from the file that FEDRAN_SERVER names on the server's machine; the run only names
the task. A run without a task asks for nothing new: it takes in what sites still hold and hands
the newest head to those that lack it.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedran.federation.ops.nodes import node_owners
from fedran.federation.protocol.identity import check_task
from fedran.federation.protocol.lockfile import alone
from fedran.federation.protocol.logs import log_to
from fedran.federation.protocol.paths import ServerPlace
from fedran.federation.protocol.roster import Roster
from fedran.federation.protocol.settings import ServerSettings, configured
from fedran.federation.server.round import Round
from fedran.federation.server.store import Keeper, Rules
from fedran.federation.server.validation import Validation
from fedran.wire.validation import Limits

VARIABLE = "FEDRAN_SERVER"
PATIENCE = 600.0
"""Seconds to wait for another run, or for `fedran federation accept`, to leave the journal."""
log = logging.getLogger(__name__)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask every node for the task, take in what comes, hand back receipts and the head."""
    settings, here = configured(ServerSettings, VARIABLE, "server's")
    log_to(here)
    try:
        task = str(context.run_config.get("task", ""))
        if task:
            check_task(task)
        with alone(here / settings.state, PATIENCE, task=task):
            keeper = open_keeper(settings, here)
            try:
                validation = Validation.of(settings, here)
                owners = partial(node_owners, ServerPlace(here))
                Round(grid, settings, keeper, validation, owners).run(task)
            finally:
                keeper.close()
    except Exception as reason:
        log.exception("the run failed: %s", reason)
        raise


def open_keeper(settings: ServerSettings, here: Path) -> Keeper:
    """The server's state, restored; hold the lock of its folder (``alone``) while it is open."""
    phi = settings.offer("any").features()
    rules = Rules(
        settings.federation,
        phi.fingerprint,
        settings.out_features,
        max_classes=settings.max_classes,
        limits=Limits(message=settings.largest_upload),
        snapshot_every=settings.snapshot_every,
    )
    return Keeper(here / settings.state, rules, Roster.load(here / settings.roster))
