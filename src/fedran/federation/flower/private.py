"""What is used of Flower that is not its public API, and may be gone in its next version.

Flower is therefore pinned to one minor release in pyproject.toml. ``check_names`` says what a
version lacks; a test calls it, and compares the table with the imports of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

VERSION = "1.41"
"""The pinned minor release."""
IMPORTED = {
    "flwr.cli.build": ("build_fab_from_files",),
    "flwr.proto.control_pb2": (
        "ListNodesRequest",
        "ListRunsRequest",
        "RegisterNodeRequest",
        "StartRunRequest",
        "UnregisterNodeRequest",
    ),
    "flwr.proto.fab_pb2": ("Fab",),
    "flwr.proto.runtime_pb2": ("AcquireTaskRequest",),
    "flwr.proto.transport_pb2": ("Scalar",),
    "flwr.supercore.constant": ("FLEET_HTTP_PUBLIC_KEY_HEADER", "TASK_TOKEN_HEADER", "TaskType"),
    "flwr.supercore.control": ("ControlHttpClient",),
    "flwr.supercore.interceptors": (
        "RuntimeVersionHttpInterceptor",
        "SuperExecAuthHttpInterceptor",
    ),
    "flwr.supercore.retry": ("make_simple_http_retry_invoker",),
    "flwr.supercore.runtime": ("RuntimeHttpClient",),
    "flwr.superlink.routers.fleet.node_auth": ("authenticate_node",),
}
"""Names that are imported from modules."""
CALLED = {
    "flwr.superlink.cli.flower_superlink": ("flower_superlink", "uvicorn"),
    "flwr.superlink.main": ("create_app",),
    "flwr.superlink.runtime.run_serverapp": ("install_from_fab", "run_", "run_serverapp"),
    "flwr.supernode.runtime.run_clientapp": (
        "get_load_client_app_fn",
        "install_from_fab",
        "run_clientapp",
    ),
}
"""Names that are called or replaced (``replace_steps``) in modules that are imported whole."""


def check_names() -> None:
    """Raise for the first name in the tables that the installed version of Flower lacks."""
    for table in (IMPORTED, CALLED):
        for module, names in table.items():
            for name in names:
                try:
                    getattr(import_module(module), name)
                except (ImportError, AttributeError):
                    raise _lacks(f"{module}.{name}") from None


def replace_steps(module: ModuleType, steps: Mapping[str, Callable[..., Any]]) -> None:
    """Replace functions of Flower. One that this version does not have is an error."""
    for name, step in steps.items():
        if not callable(getattr(module, name, None)):
            raise _lacks(f"{module.__name__}.{name}")
        setattr(module, name, step)


def _lacks(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"this version of Flower has no {name}, which fedran replaces or calls to refuse foreign "
        f"apps and requests; install flwr {VERSION}"
    )
