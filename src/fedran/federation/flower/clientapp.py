"""The Flower app of a site: gives messages to ``site/app.py``, and sends its answers."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedran.core.errors import Refused
from fedran.federation.flower.records import make_record, read_record
from fedran.federation.protocol.messages import Question
from fedran.federation.site.app import respond

VARIABLE = "FEDRAN_SITE"
"""Environment variable: the path of the site's configuration."""
app = ClientApp()


@app.train()
def answer_offer(message: Message, _: Context) -> Message:
    """Send the uploads that the server may lack."""
    return _answer(Question.OFFER, message)


@app.evaluate()
def validate_heads(message: Message, _: Context) -> Message:
    """Test heads on the site's validation rows."""
    return _answer(Question.VALIDATE, message)


@app.query()
def receive_results(message: Message, _: Context) -> Message:
    """Keep receipts and the newest head."""
    return _answer(Question.RESULTS, message)


def _answer(kind: Question, message: Message) -> Message:
    file = Path(os.environ[VARIABLE])
    try:
        answer = respond(kind, *read_record(message.content), file)
    except Refused as reason:
        answer = respond(kind, {}, {}, file, unreadable=reason)
    return Message(make_record(*answer), reply_to=message)
