"""Labels that do not match are noticed at the site before it sends."""

import json
import logging
from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.federation.protocol.messages import Offer
from fedran.federation.server.settings import ServerSettings
from helpers.federation.made_site import OFFER, rows, site_of

CLOSED = replace(OFFER, classes=(0, 1, 2))


def test_the_offer_carries_the_classes_and_older_servers_send_none():
    settings = ServerSettings("trial", 6, classes=["b", 2, "a"])
    offer = settings.offer("may")
    assert offer.classes == (2, "a", "b")
    fields = json.loads(json.dumps(replace(offer, known_classes=(1, "x")).fields()))
    assert Offer.read(fields) == replace(offer, known_classes=(1, "x"))
    del fields["classes"], fields["known_classes"]
    assert (Offer.read(fields).classes, Offer.read(fields).known_classes) == ((), ())
    assert ServerSettings("trial", 6).offer("may").classes == ()


@pytest.mark.parametrize("classes", [[1, 1], ["\0"], ["x" * 300], [1.5], [True], "cat"])
def test_a_wrong_list_of_classes_is_refused(classes):
    with pytest.raises(ValueError, match=r"classes|label"):
        ServerSettings("trial", 6, classes=classes)
    if classes not in ([1, 1], ["\0"]):  # what a server of this version never sends
        with pytest.raises(Refused, match="classes"):
            Offer.read({**OFFER.fields(), "classes": classes})


def test_a_site_with_other_labels_sends_nothing_and_its_log_names_them(tmp_path, caplog):
    X, y = rows()
    named = ["1" if label == 1 else "digit 2" if label == 2 else label for label in y]
    site = site_of(tmp_path, X, named)
    with pytest.raises(Refused) as refused:
        site.prepare(CLOSED)
    told = str(refused.value)
    assert ("labels" in told, "digit" in told) == (True, False)  # the reason goes to the server
    assert "1 and '1' may be meant as one class" in caplog.text
    assert "unknown labels: '1', 'digit 2'" in caplog.text
    assert site.outbox.pending() == []
    assert site_of(tmp_path, X, [None, *y[1:]], pseudo_labels="none").prepare(CLOSED)


def test_other_spellings_of_known_classes_are_a_warning_where_new_ones_are_allowed(
    tmp_path, caplog
):
    X, y = rows()
    site = site_of(tmp_path, X, ["Cat" if label == 1 else label for label in y])
    with caplog.at_level(logging.WARNING):
        assert site.prepare(replace(OFFER, known_classes=(0, "cat")))
    (warning,) = [r.getMessage() for r in caplog.records if "one class" in r.getMessage()]
    assert "'cat' and 'Cat'" in warning
    assert "2" not in warning  # a new class is no problem
