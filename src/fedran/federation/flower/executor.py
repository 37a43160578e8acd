"""Runs the installed app for the tasks of a SuperLink or SuperNode, and never another app.

Flower's own launcher installs and runs the app that comes with a run, and passes the token of a
task on the command line, where every user of the machine can read it. Two programs take its place:

    python -m fedran.federation.flower.executor server SERVER.toml HOST:PORT SECRET CA
    python -m fedran.federation.flower.executor client SITE.toml HOST:PORT SECRET CA

They claim tasks with a secret that only their own user can read, and run the installed app in a
forked process. Whoever submits a run can therefore start this app, but brings no code.
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
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import Queue
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

from fedran.core.errors import Refused, printable
from fedran.federation.flower.private import replace_steps
from fedran.federation.protocol.limits import MAX_JSON, POLL_SECONDS
from fedran.federation.protocol.logs import log_to
from fedran.federation.server.settings import STATE
from fedran.federation.site.settings import ALARMS

log = logging.getLogger("fedran.federation.flower.executor")
client_task = import_module("flwr.supernode.runtime.run_clientapp")
server_task = import_module("flwr.superlink.runtime.run_serverapp")
"""Flower's package has a function of the same name as this module."""
CLAIM = "/flwr.proto.Runtime/AcquireTask"
"""The one call that needs the secret. Its answer contains a token for all others."""
COMPONENTS = {
    "serverapp": "fedran.federation.flower.serverapp:app",
    "clientapp": "fedran.federation.flower.clientapp:app",
}
"""What our app names. It contains no code."""


def check_app(fab: bytes) -> None:
    """Refuse the app of a run unless it only names the two apps of this package."""
    expected = "an app that only names the apps of fedran"
    try:
        with zipfile.ZipFile(io.BytesIO(fab)) as file:
            names = sorted(n for n in file.namelist() if not n.startswith(".info/"))
            if file.getinfo("pyproject.toml").file_size > MAX_JSON:
                raise ValueError("a large file")
            table = tomllib.loads(file.read("pyproject.toml").decode())
        found = table["tool"]["flwr"]["app"]["components"]
    except (zipfile.BadZipFile, zlib.error, LookupError, TypeError, ValueError) as reason:
        raise Refused("app", expected, type(reason).__name__) from None
    except RecursionError:
        raise Refused("app", expected, "a deeply nested file") from None
    if names != ["pyproject.toml"] or found != COMPONENTS:
        raise Refused("app", expected, [*names[:10], found])


def end_with(work: Callable[[], None]) -> NoReturn:
    """Do the work of a forked process, and end the process."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as reason:
        log.error("a task was not done", exc_info=reason)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def claim_tasks(
    address: str,
    secret: bytes,
    authority: bytes,
    task_type: str,
    run: Callable[[str], None],
) -> NoReturn:
    """Claim tasks and call ``run`` with the token of each in a process of its own, forever."""
    client = RuntimeHttpClient.from_server_address(
        address,
        insecure=False,
        root_certificates=authority,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={CLAIM}),
        ],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    while True:
        found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[task_type]))
        if found.HasField("task") and found.token and os.fork() == 0:
            end_with(partial(run, found.token))
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if os.WIFSIGNALED(ended[1]):
                    number = os.WTERMSIG(ended[1])
                    log.error("a task was not done: signal %d ended its process", number)
        time.sleep(POLL_SECONDS)


def run_task(
    app: Callable[..., None], state: Path, address: str, token: str, authority: bytes
) -> None:
    """Run the server's app for one run of Flower. ``state`` is the folder of its state.

    Flower's function for this pulls the run and pushes its end. It installs the app of the run,
    which contains no code once it is checked, and then runs the installed app instead of it.
    """
    install = server_task.install_from_fab

    def check_and_install(fab: bytes, **options: Any) -> Any:
        check_or_alarm(fab, state)
        return install(fab, **options)

    def run_installed(grid: Any, context: Any, **_: Any) -> Any:
        app(grid=grid, context=context)
        return context

    replace_steps(server_task, {"install_from_fab": check_and_install, "run_": run_installed})
    queue: Queue[str | None] = Queue()
    server_task.run_serverapp(
        address,
        queue,
        token,
        False,
        authority,
        os.getppid(),
        runtime_dependency_install=False,
    )


def check_or_alarm(fab: bytes, state: Path) -> None:
    """Refuse a run with another app; log it, and keep it for ``fedran federation status``."""
    try:
        check_app(fab)
    except Refused as reason:
        log.error(
            "ALARM: a run brought an app that is not fedran's, and was refused (%s). Whoever "
            "started it reached the owner's interface of the SuperLink; at a site, ask the "
            "server's owner.",
            reason,
        )
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        line = json.dumps({"at": time.time(), "reason": printable(reason)})
        with suppress(OSError), (state / ALARMS).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        raise


def answer_message(app: ClientApp, state: Path, address: str, token: str, authority: bytes) -> None:
    """Answer one message with the site's app. ``state`` is the folder of its state.

    Flower's function for this pulls the message and pushes the answer. Its two steps that install
    and load the app of the run are replaced.
    """

    def check(fab: bytes, **_: Any) -> None:
        check_or_alarm(fab, state)

    def load(**_: Any) -> Any:
        def installed(*_: str) -> ClientApp:
            return app

        return installed

    replace_steps(client_task, {"install_from_fab": check, "get_load_client_app_fn": load})
    client_task.run_clientapp(
        address, token, False, authority, os.getppid(), runtime_dependency_install=False
    )


def serve(app: Any, file: str, address: str, secret: str, authority: str) -> NoReturn:
    """Claim runs or messages for an app, each in a process of its own, until this one is ended."""
    folder, root = Path(file).parent, Path(authority).read_bytes()
    log_to(folder)
    os.chdir(folder)  # for relative paths in an entry point
    run, of_type = run_task, TaskType.SERVER_APP
    if isinstance(app, ClientApp):
        run, of_type = answer_message, TaskType.CLIENT_APP
    work = partial(run, app, folder / STATE, address, authority=root)
    claim_tasks(address, Path(secret).read_bytes(), root, of_type, work)


if __name__ == "__main__":
    side, *arguments = sys.argv[1:]  # only the app of this side is imported
    serve(import_module(f"fedran.federation.flower.{side}app").app, *arguments)
