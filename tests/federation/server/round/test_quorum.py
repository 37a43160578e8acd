"""When a task has a verdict: who answered, who declined, and the deadline."""

import pytest

pytest.importorskip("cryptography")

import pytest

from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.server.round.quorum import Quorum

pytest.importorskip("cryptography")


def receipt(client, code=Code.ACCEPTED):
    return Receipt(code, client, "may", "d")


def test_a_task_is_complete_when_everyone_has_answered():
    task = Quorum(frozenset("abc"), 2, 60)
    assert task.verdict(0) == "wait"
    for client in "abc":
        task.answer(receipt(client))
    assert task.verdict(1) == "complete"
    assert task.missing == []


def test_refused_uploads_do_not_count():
    task = Quorum(frozenset("abc"), 2, 60)
    for client, code in zip("abc", (Code.INVALID, Code.TOO_LARGE, Code.ACCEPTED), strict=True):
        task.answer(receipt(client, code))
    assert (task.accepted, task.verdict(1)) == (1, "short")
    task.answer(receipt("a", Code.DUPLICATE))
    assert task.verdict(1) == "complete"


def test_the_verdict_at_the_deadline_depends_on_the_uploads_that_came():
    task = Quorum(frozenset("abc"), 2, 60)
    task.answer(receipt("a"))
    assert (task.verdict(59.9), task.verdict(60)) == ("wait", "short")
    task.answer(receipt("b"))
    assert (task.verdict(59.9), task.verdict(60)) == ("wait", "quorum")
    assert task.missing == ["c"]


def test_uploads_of_others_do_not_make_a_quorum():
    task = Quorum(frozenset("ab"), 2, 60)
    task.answer(receipt("late"))
    task.answer(receipt("a"))
    assert task.accepted == 1


def test_a_quorum_that_cannot_be_reached_is_refused():
    with pytest.raises(ValueError, match="min_clients is 3, but the roster has 2 sites"):
        Quorum(frozenset("ab"), 3, 60)


def task(least=1):
    return Quorum(frozenset("abc"), least, 60)


def answer(quorum, client, code=Code.ACCEPTED):
    quorum.answer(Receipt(code, client, "may", "d"))


def test_a_quorum_does_not_wait_for_sites_that_declined():
    found = task()
    answer(found, "a")
    found.declined.add("b")
    assert (found.verdict(0), found.missing) == ("wait", ["c"])
    found.declined.add("c")
    assert (found.verdict(0), found.missing) == ("complete", [])


def test_a_declined_task_is_not_an_upload():
    found = task(2)
    answer(found, "a")
    for client in "bc":
        found.declined.add(client)
    assert (found.accepted, found.verdict(0)) == (1, "short")
    everyone = task()
    for client in "abc":
        everyone.declined.add(client)
    assert everyone.verdict(0) == "short"


def test_declining_after_an_upload_does_not_remove_the_upload():
    found = task(3)
    for client in "abc":
        answer(found, client)
    found.declined.add("a")
    assert (found.accepted, found.verdict(0)) == (3, "complete")


def test_an_upload_counts_after_the_site_declined():
    found = task(1)
    found.declined.add("a")
    answer(found, "a")
    assert found.accepted == 1


def test_strangers_that_decline_change_nothing():
    found = task()
    answer(found, "a")
    for client in ("z", "", "A"):
        found.declined.add(client)
    assert (found.verdict(59), found.missing) == ("wait", ["b", "c"])


def test_a_task_that_asks_nobody_is_complete():
    assert Quorum(frozenset(), 0, 60).verdict(0) == "complete"
