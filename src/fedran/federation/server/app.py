"""The Flower app of the server: one run is one task.

Settings come from the file that FEDRAN_SERVER names on the server's machine; the run only names
the task. A run without a task asks for nothing new: it takes in what sites still hold and hands
the newest head to those that lack it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedran.federation.protocol.identity import Roster, check_task
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.logs import log_to
from fedran.federation.protocol.settings import configured
from fedran.federation.server.round import Round
from fedran.federation.server.settings import ServerPaths, ServerSettings
from fedran.federation.server.store import Rules, Store
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
        with locked(here / settings.state, PATIENCE, task=task):
            store = open_store(settings, here)
            try:
                validation = Validation.of(settings, here)
                owners = ServerPaths(here).node_owners
                Round(grid, settings, store, validation, owners).run(task)
            finally:
                store.close()
    except Exception as reason:
        log.exception("the run failed: %s", reason)
        raise


def open_store(settings: ServerSettings, here: Path) -> Store:
    """The server's state, restored; hold the lock of its folder (``locked``) while it is open."""
    phi = settings.offer("any").features()
    rules = Rules(
        settings.federation,
        phi.fingerprint,
        settings.out_features,
        max_classes=settings.max_classes,
        limits=Limits(message=settings.largest_upload),
        snapshot_every=settings.snapshot_every,
    )
    return Store(here / settings.state, rules, Roster.load(here / settings.roster))
