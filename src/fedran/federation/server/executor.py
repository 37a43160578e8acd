"""Runs the server's app for the runs of its SuperLink, and never another app.

``python -m fedran.federation.server.executor SERVER.toml HOST:PORT SECRET [CA]`` is the program.
See ``protocol/executor.py`` for why it exists.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from queue import Queue
from typing import Any

from flwr.supercore.constant import TaskType

from fedran.core.errors import Refused
from fedran.federation.protocol.executor import check_app, claim_tasks, replace_steps
from fedran.federation.protocol.logs import log_to
from fedran.federation.server.app import app

log = logging.getLogger("fedran.federation.server.executor")
flower_task = import_module("flwr.superlink.runtime.run_serverapp")
"""Flower's package has a function of the same name as this module."""


def run_task(address: str, token: str, authority: bytes | None) -> None:
    """Run the installed app for one run of Flower.

    Flower's function for this pulls the run and pushes its end. It installs the app of the run,
    which contains no code once it is checked, and then runs the installed app instead of it.
    """
    install = flower_task.install_from_fab

    def check_and_install(fab: bytes, **options: Any) -> Any:
        try:
            check_app(fab)
        except Refused as reason:
            log.error(
                "ALARM: a run brought an app that is not fedran's, and was refused (%s). Whoever "
                "started it can reach the SuperLink's port on this machine.",
                reason,
            )
            raise
        return install(fab, **options)

    def run_installed(grid: Any, context: Any, **_: Any) -> Any:
        app(grid=grid, context=context)
        return context

    replace_steps(flower_task, {"install_from_fab": check_and_install, "run_": run_installed})
    queue: Queue[str | None] = Queue()
    flower_task.run_serverapp(
        address,
        queue,
        token,
        authority is None,
        authority,
        os.getppid(),
        runtime_dependency_install=False,
    )


def main(file: Path, address: str, secret: Path, authority: Path | None) -> None:
    """Claim runs and do each in a process of its own, until this one is ended."""
    log_to(file.parent)
    root = None if authority is None else authority.read_bytes()
    claim_tasks(
        address,
        secret.read_bytes(),
        root,
        TaskType.SERVER_APP,
        lambda token: run_task(address, token, root),
    )


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        sys.argv[2],
        Path(sys.argv[3]),
        Path(sys.argv[4]) if sys.argv[4:] else None,
    )
