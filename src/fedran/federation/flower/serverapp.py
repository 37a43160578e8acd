"""The Flower app of the server. One run of it is one task.

Settings come from the file that FEDRAN_SERVER names on the server's machine; the run names the
task, and may have a deadline of its own. A run without a task asks for nothing new. It accepts
uploads that sites still hold, and sends the newest head to sites that lack it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid, ServerApp

from fedran.core.errors import Refused, check_id
from fedran.federation.flower.records import make_record, read_record
from fedran.federation.protocol.configuration import load_settings
from fedran.federation.protocol.logs import log_to
from fedran.federation.protocol.messages import Question
from fedran.federation.secure.server.secure_round import run_round
from fedran.federation.server.round.messenger import Incoming
from fedran.federation.server.settings import ServerSettings

VARIABLE = "FEDRAN_SERVER"
MESSAGE_TYPES = {
    Question.OFFER: MessageType.TRAIN,
    Question.VALIDATE: MessageType.EVALUATE,
    Question.RESULTS: MessageType.QUERY,
}
log = logging.getLogger(__name__)
app = ServerApp()


class FlowerNetwork:
    """The nodes of a federation over Flower's grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def nodes(self) -> Iterable[int]:
        """The connected nodes."""
        return list(self.grid.get_node_ids())

    def send(
        self,
        node: int,
        kind: Question,
        fields: Mapping[str, Any],
        blobs: Mapping[str, bytes],
        seconds: float,
    ) -> str:
        """Send one message that expires; returns its id, or "" if Flower does not take it."""
        content, of_type = make_record(fields, blobs), MESSAGE_TYPES[kind]
        message = Message(content, dst_node_id=node, message_type=of_type, ttl=seconds)
        (number,) = self.grid.push_messages([message])
        return str(number or "")

    def reply(self, number: str) -> Incoming | None:
        """The reply to one message, or None if none has arrived."""
        for message in self.grid.pull_messages([number]):
            if message.has_error():
                return Incoming(error=str(message.error.reason))
            try:
                return Incoming(*read_record(message.content))
            except Refused as reason:
                return Incoming(refused=reason)
        return None


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Offer the task to every node, accept uploads, hand back receipts and the head."""
    file = os.environ.get(VARIABLE)
    if not file:
        raise Refused(VARIABLE, "the path of the server's configuration (.toml)", "nothing")
    settings, folder = load_settings(ServerSettings, file), Path(file).parent
    log_to(folder)
    try:
        task = str(context.run_config.get("task", ""))
        if task:
            check_id(task, "task")
        if deadline := context.run_config.get("deadline"):
            settings = replace(settings, deadline=float(deadline))
        run_round(FlowerNetwork(grid), folder, settings, task, keyed=True)
    except Exception as reason:
        log.exception("the run failed: %s", reason)
        raise
