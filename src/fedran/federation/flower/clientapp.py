"""The Flower app of a site: gives messages to ``site/app.py``, and sends its answers."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedran.core.errors import Refused
from fedran.federation.flower.records import make_record, read_record
from fedran.federation.protocol.messages import Question
from fedran.federation.site.app import respond

app = ClientApp()


@app.train()
def answer_offer(message: Message, context: Context) -> Message:
    """Send the uploads that the server may lack."""
    return _answer(Question.OFFER, message, context)


@app.evaluate()
def validate_heads(message: Message, context: Context) -> Message:
    """Test heads on the site's validation rows."""
    return _answer(Question.VALIDATE, message, context)


@app.query()
def receive_results(message: Message, context: Context) -> Message:
    """Keep receipts and the newest head."""
    return _answer(Question.RESULTS, message, context)


def _answer(kind: Question, message: Message, context: Context) -> Message:
    number = context.node_config.get("partition-id")
    try:
        fields, blobs = read_record(message.content)
    except Refused as reason:
        answer = respond(kind, {}, {}, number, unreadable=reason)
    else:
        answer = respond(kind, fields, blobs, number)
    return Message(make_record(*answer), reply_to=message)
