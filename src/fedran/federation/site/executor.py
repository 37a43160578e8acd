"""Runs this site's app for the messages that its SuperNode received, and never another app.

``python -m fedran.federation.site.executor SITE.toml HOST:PORT`` is the program. See
``protocol/executor.py`` for why it exists. The port has TLS with a certificate of the site's own.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp
from flwr.supercore.constant import TaskType
from flwr.supernode.runtime import run_clientapp as flower_task

from fedran.core.errors import Refused, printable
from fedran.federation.protocol.configuration import load_settings
from fedran.federation.protocol.executor import check_app, claim_tasks, replace_steps
from fedran.federation.protocol.logs import log_to
from fedran.federation.site.app import app
from fedran.federation.site.settings import ALARMS, SitePaths, SiteSettings

log = logging.getLogger("fedran.federation.site.executor")


def note_alarm(paths: SitePaths, reason: str) -> None:
    """Log a run with a foreign app, and keep it for ``fedran federation status``."""
    log.error(
        "ALARM: a run brought an app that is not fedran's, and was refused (%s). Whoever started "
        "it controls the server: ask its owner.",
        reason,
    )
    path = paths.state / ALARMS
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    line = json.dumps({"at": time.time(), "reason": printable(reason)})
    with suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def answer_message(paths: SitePaths, address: str, token: str, authority: bytes) -> None:
    """Answer one message with the installed app.

    Flower's function for this pulls the message and pushes the answer. Its two steps that install
    and load the app of the run are replaced.
    """

    def check(fab: bytes, **_: Any) -> None:
        try:
            check_app(fab)
        except Refused as reason:
            note_alarm(paths, str(reason))
            raise

    def load(**_: Any) -> Any:
        def installed(*_: str) -> ClientApp:
            return app

        return installed

    replace_steps(flower_task, {"install_from_fab": check, "get_load_client_app_fn": load})
    flower_task.run_clientapp(
        address, token, False, authority, os.getppid(), runtime_dependency_install=False
    )


def main(file: Path, address: str) -> None:
    """Claim messages and answer each in a process of its own, until this one is ended."""
    paths = SitePaths(file.parent)
    load_settings(SiteSettings, file)
    log_to(paths.folder)
    authority = (paths.runtime / "ca.crt").read_bytes()
    secret = (paths.runtime / "secret").read_bytes()
    claim_tasks(
        address,
        secret,
        authority,
        TaskType.CLIENT_APP,
        lambda token: answer_message(paths, address, token, authority),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
