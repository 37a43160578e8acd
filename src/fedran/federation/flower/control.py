"""What only the owner of a SuperLink may do: start and list runs, list and admit nodes.

Flower's command line does the same, but starts a program for every question, which takes more than
a second of CPU. This module asks from the running process. It imports Flower at the first question.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedran.core.errors import Refused, printable
from fedran.federation.protocol.keys import load_node_key
from fedran.federation.server.settings import APP, OWNER, ServerPaths

COMPLETED = "finished:completed"
"""Status of a run that ended without an error."""


class FlowerError(OSError):
    """The SuperLink did not answer in time, or answered with an error."""


@dataclass(frozen=True)
class FlowerRun:
    """A run as the SuperLink describes it."""

    run_id: str
    status: str
    """For example "running", or "finished:completed"."""
    received: int
    """Bytes that the server received."""
    sent: int

    @property
    def active(self) -> bool:
        """Whether it has not ended."""
        return not self.status.startswith("finished")


@dataclass(frozen=True)
class FlowerNode:
    """A node as the SuperLink describes it."""

    node_id: str
    status: str
    """registered, online or offline."""


def start_run(paths: ServerPaths, task: str = "", deadline: float = 0.0) -> str:
    """Start a run of our app and return its id; "" names no task.

    With a ``deadline`` of 0, that of the server's settings counts.
    """
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.fab_pb2 import Fab
    from flwr.proto.transport_pb2 import Scalar

    app = (paths.flower / APP).read_bytes()
    request = StartRunRequest(
        fab=Fab(hash_str=hashlib.sha256(app).hexdigest(), content=app),
        override_config={"task": Scalar(string=task), "deadline": Scalar(double=deadline)},
    )
    with _client(paths, "start a run") as client:
        return str(client.StartRun(request).run_id)


def list_runs(paths: ServerPaths, run_id: str | None = None) -> list[FlowerRun]:
    """All runs, newest first, or one of them."""
    from flwr.proto.control_pb2 import ListRunsRequest

    with _client(paths, "list runs") as client:
        which = {} if run_id is None else {"run_id": int(run_id)}
        found = client.ListRuns(ListRunsRequest(**which)).run_dict.values()
    return [
        FlowerRun(
            str(run.run_id),
            ":".join(filter(None, (run.status.status, run.status.sub_status))),
            int(run.bytes_recv),
            int(run.bytes_sent),
        )
        for run in sorted(found, key=lambda run: run.pending_at, reverse=True)
    ]


def list_nodes(paths: ServerPaths) -> list[FlowerNode]:
    """The nodes that may connect."""
    from flwr.proto.control_pb2 import ListNodesRequest

    with _client(paths, "list nodes") as client:
        found = client.ListNodes(ListNodesRequest()).nodes_info
    return [FlowerNode(str(n.node_id), n.status) for n in found if n.status != "unregistered"]


def register_node(paths: ServerPaths, key: str, name: str) -> str:
    """Let the node with a public key (OpenSSH, an elliptic curve) connect; returns its id."""
    from flwr.proto.control_pb2 import RegisterNodeRequest

    try:
        public = load_node_key(key).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    except Refused as reason:
        raise FlowerError(f"the public key of {name} cannot be read: {reason}") from None
    request = RegisterNodeRequest(public_key=public, name=name)
    with _client(paths, "register a node") as client:
        return str(client.RegisterNode(request).node_id)


def unregister_node(paths: ServerPaths, node_id: str) -> None:
    """End the right of a node to connect."""
    from flwr.proto.control_pb2 import UnregisterNodeRequest

    with _client(paths, "unregister a node") as client:
        client.UnregisterNode(UnregisterNodeRequest(node_id=int(node_id)))


@contextmanager
def _client(paths: ServerPaths, purpose: str) -> Iterator[Any]:
    """A connection with the owner's secret. Every failure is a FlowerError of one sentence."""
    import httpx
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    owner = json.loads((paths.runtime / OWNER).read_bytes())
    client = ControlHttpClient.from_server_address(
        owner["address"],
        insecure=False,
        root_certificates=(paths.tls / "ca.crt").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor("flwr CLI"), _Bearer(owner["secret"])],
    )
    try:
        yield client
    except httpx.HTTPStatusError as reason:
        said = printable(" ".join(reason.response.text.split()), 300)
        code = reason.response.status_code
        raise FlowerError(f"Flower refused to {purpose}: {said or code}") from None
    except (httpx.HTTPError, ValueError) as reason:
        why = printable(reason, 300) or type(reason).__name__
        raise FlowerError(f"no answer of Flower to {purpose}: {why}") from None
    finally:
        client.close()


class _Bearer:
    """Adds the owner's secret to every request."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def intercept(self, context: Any, call_next: Any) -> Any:
        context.request.headers["Authorization"] = f"Bearer {self.secret}"
        return call_next(context)
