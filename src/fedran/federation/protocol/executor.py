"""Runs the installed app for the tasks of a SuperLink or SuperNode, and never another app.

Flower's own launcher installs and runs the app that comes with a run, and passes the token of a
task on the command line, where every user of the machine can read it. The programs in
``site/executor.py`` and ``server/executor.py`` take its place. They claim tasks with a secret that
only their own user can read, and run the installed app in a forked process. Whoever submits a run
can therefore start this app, but brings no code.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import time
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.interceptors import (
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient

from fedran.core.errors import Refused

log = logging.getLogger(__name__)
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


def replace_steps(module: ModuleType, steps: Mapping[str, Callable[..., Any]]) -> None:
    """Replace functions of Flower. One that this version does not have is an error."""
    for name, step in steps.items():
        if not callable(getattr(module, name, None)):
            raise NotImplementedError(
                f"this version of Flower has no step {name}, so foreign apps could not be refused; "
                "install the version in constraints.txt"
            )
        setattr(module, name, step)


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
    authority: bytes | None,
    task_type: str,
    run: Callable[[str], None],
) -> NoReturn:
    """Claim tasks and call ``run`` with the token of each in a process of its own, forever.

    ``authority`` is the certificate of the authority; None: the port has no TLS.
    """
    client = RuntimeHttpClient.from_server_address(
        address,
        insecure=authority is None,
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
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(POLL_SECONDS)
