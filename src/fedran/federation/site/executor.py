"""Runs this site's app for the messages that its SuperNode received, and never another app.

Flower's own launcher installs and runs the app that comes with a run, and passes the token of a
message on the command line, where every user of the machine can read it. This program takes its
place. It claims messages with a secret that only the site's user can read, over TLS with a
certificate of the site's own, and runs the installed app in a forked process. Whoever submits a
run can therefore send messages to this app, but no code.

``python -m fedran.federation.site.executor SITE.toml HOST:PORT`` is the program.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import time
import tomllib
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from flwr.clientapp import ClientApp
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime import run_clientapp as flower_task

from fedran.core.errors import Refused, printable
from fedran.federation.protocol.logs import log_to
from fedran.federation.protocol.settings import load_settings
from fedran.federation.site.app import app
from fedran.federation.site.report import ALARMS
from fedran.federation.site.settings import SitePaths, SiteSettings

log = logging.getLogger("fedran.federation.site.executor")
CLAIM = "/flwr.proto.Runtime/AcquireTask"
"""The one call that needs the secret. Its answer contains a token for all others."""
POLL_SECONDS = 1.0
COMPONENTS = {
    "serverapp": "fedran.federation.server.app:app",
    "clientapp": "fedran.federation.site.app:app",
}
"""What our app names. It contains no code."""
MAX_APP_BYTES = 2**20


def check_app(fab: bytes) -> None:
    """Refuse the app of a run unless it only names the two apps of this package."""
    expected = "an app that only names the apps of fedran"
    try:
        with zipfile.ZipFile(io.BytesIO(fab)) as file:
            names = {n for n in file.namelist() if not n.startswith(".info/")}
            size = file.getinfo("pyproject.toml").file_size
            if names != {"pyproject.toml"} or size > MAX_APP_BYTES:
                raise Refused("app", expected, sorted(names)[:10])
            table = tomllib.loads(file.read("pyproject.toml").decode())
        components = table["tool"]["flwr"]["app"]["components"]
    except Refused:
        raise
    except (zipfile.BadZipFile, zlib.error, LookupError, TypeError, ValueError) as reason:
        raise Refused("app", expected, type(reason).__name__) from None
    except RecursionError:
        raise Refused("app", expected, "a deeply nested file") from None
    if components != COMPONENTS:
        raise Refused("app", expected, components)


def note_alarm(paths: SitePaths, reason: str) -> None:
    """Log a run with a foreign app, and keep it for ``fedran federation status``."""
    log.error(
        "ALARM: a run brought an app that is not fedran's, and was refused (%s). Whoever started "
        "it controls the server: ask its owner.",
        reason,
    )
    path = paths.folder / paths.settings().state / ALARMS
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    line = json.dumps({"at": time.time(), "reason": printable(reason)})
    with suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def run_message(paths: SitePaths, address: str, token: str, authority: bytes) -> NoReturn:
    """Answer one message with the installed app; ends the process.

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

    for name, step in (("install_from_fab", check), ("get_load_client_app_fn", load)):
        if not callable(getattr(flower_task, name, None)):
            raise NotImplementedError(
                f"this version of Flower has no step {name}, so foreign apps could not be refused; "
                "install the version in constraints.txt"
            )
        setattr(flower_task, name, step)
    code = 1
    try:
        flower_task.run_clientapp(
            address, token, False, authority, os.getppid(), runtime_dependency_install=False
        )
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as reason:
        log.error("a message was not answered", exc_info=reason)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(file: Path, address: str) -> None:
    """Claim messages and answer each in a process of its own, until this one is ended."""
    paths = SitePaths(file.parent)
    load_settings(SiteSettings, file)
    log_to(paths.folder)
    authority = (paths.runtime / "ca.crt").read_bytes()
    client = RuntimeHttpClient.from_server_address(
        address,
        insecure=False,
        root_certificates=authority,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(
                master_secret=(paths.runtime / "secret").read_bytes(), protected_methods={CLAIM}
            ),
        ],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    while True:
        found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if found.HasField("task") and found.token and os.fork() == 0:
            run_message(paths, address, found.token, authority)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
