"""Flower's SuperLink with an owner's interface that needs a secret.

``python -m fedran.federation.server.superlink RUNTIME ...`` takes the arguments of
``flower-superlink``. Every user of the machine can reach the SuperLink's port. Flower lets a plugin
authenticate requests to the owner's interface (``/v1/control``), and its open distribution has no
such plugin. This one compares a bearer token with the secret in the folder RUNTIME, which only the
user of the server can read.
"""

from __future__ import annotations

import hmac
import json
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from flwr.common.constant import ACCESS_TOKEN_KEY
from flwr.supercore.auth.typing import AccountAuthLoginDetails, AccountInfo
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin

from fedran.federation.protocol.executor import replace_steps
from fedran.federation.protocol.logs import log_to
from fedran.federation.server.settings import OWNER, REFUSED_REQUESTS
from fedran.wire.files import write_atomically

Metadata = Sequence[tuple[str, str | bytes]]
log = logging.getLogger("fedran.federation.server.superlink")
ALARM_SECONDS = 60.0
"""Least time between two alarms, because every request can cause one."""


class OwnerOnly(NoOpControlAuthnPlugin):  # type: ignore[misc]
    """Lets whoever has the secret act as the one account of Flower's open distribution."""

    def __init__(self, runtime: Path) -> None:
        super().__init__()
        self.secret = json.loads((runtime / OWNER).read_bytes())["secret"].encode()
        self.refused = runtime / REFUSED_REQUESTS
        """File with the number of refused requests, for the status."""
        self.times, self.next_alarm = 0, 0.0

    def get_login_details(self) -> AccountAuthLoginDetails | None:
        """None: there is no login."""
        return None

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        """Whether the token is the secret."""
        token = str(dict(metadata).get(ACCESS_TOKEN_KEY, "")).encode(errors="replace")
        if hmac.compare_digest(token, self.secret):
            return super().validate_tokens_in_metadata(metadata)
        self._note_refusal()
        return False, None

    def refresh_tokens(self, metadata: Metadata) -> tuple[Metadata | None, AccountInfo | None]:
        """Refuse: a wrong secret cannot be exchanged for another one."""
        del metadata
        return None, None

    def _note_refusal(self) -> None:
        self.times += 1
        if time.monotonic() < self.next_alarm:
            return
        self.next_alarm = time.monotonic() + ALARM_SECONDS
        log.error(
            "ALARM: a request to the owner's interface without the owner's secret was refused "
            "(%d since the start). Somebody else can reach the SuperLink's port.",
            self.times,
        )
        with suppress(OSError):
            note = {"at": time.time(), "times": self.times}
            write_atomically(self.refused, json.dumps(note).encode())


def main(runtime: Path, arguments: list[str]) -> None:
    """Run a SuperLink until it is ended."""
    flower = import_module("flwr.superlink.cli.flower_superlink")
    log_to(runtime.parents[1])
    replace_steps(flower, {"load_control_authn_plugin": lambda: OwnerOnly(runtime)})
    sys.argv = ["flower-superlink", *arguments]
    flower.flower_superlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
