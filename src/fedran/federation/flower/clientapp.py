"""The Flower app of a site: gives messages to ``site/app.py``, and sends its answers."""

from __future__ import annotations

import os
from functools import partial
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


def answer(kind: Question, message: Message, _: Context) -> Message:
    """The answer of the site to a message of this kind."""
    file = Path(os.environ[VARIABLE])
    try:
        given = respond(kind, *read_record(message.content), file)
    except Refused as reason:
        given = respond(kind, {}, {}, file, unreadable=reason)
    return Message(make_record(*given), reply_to=message)


app.train()(partial(answer, Question.OFFER))
app.evaluate()(partial(answer, Question.VALIDATE))
app.query()(partial(answer, Question.RESULTS))
