"""Sites that say they have nothing to send."""

import pytest

pytest.importorskip("cryptography")

from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.server.round import Quorum


def task(least=1):
    return Quorum(frozenset("abc"), least, 60)


def answer(quorum, client, code=Code.ACCEPTED):
    quorum.answer(Receipt(code, client, "may", "d"))


def test_nobody_waits_for_a_site_that_declined():
    found = task()
    answer(found, "a")
    found.decline("b")
    assert (found.verdict(0), found.missing) == ("wait", ["c"])
    found.decline("c")
    assert (found.verdict(0), found.missing) == ("complete", [])


def test_to_decline_is_no_upload():
    found = task(2)
    answer(found, "a")
    for client in "bc":
        found.decline(client)
    assert (found.accepted, found.verdict(0)) == (1, "short")
    everyone = task()
    for client in "abc":
        everyone.decline(client)
    assert everyone.verdict(0) == "short"


def test_a_word_that_is_not_signed_removes_no_upload():
    found = task(3)
    for client in "abc":
        answer(found, client)
    found.decline("a")
    assert (found.accepted, found.verdict(0)) == (3, "complete")


def test_an_upload_counts_though_the_site_declined_before():
    found = task(1)
    found.decline("a")
    answer(found, "a")
    assert found.accepted == 1


def test_strangers_that_decline_change_nothing():
    found = task()
    answer(found, "a")
    for client in ("z", "", "A"):
        found.decline(client)
    assert (found.verdict(59), found.missing) == ("wait", ["b", "c"])


def test_without_anyone_asked_there_is_nothing_to_wait_for():
    assert Quorum(frozenset(), 0, 60).verdict(0) == "complete"
