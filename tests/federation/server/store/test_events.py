"""The event log never stops the server."""

import logging

import numpy as np
import pytest

pytest.importorskip("cryptography")

from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.limits import MAX_ITEMS, MAX_TEXT
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.events import EventLog
from helpers.federation.made_federation import Sites, full_disk, upload


def test_events_are_read_as_written(tmp_path):
    book = EventLog(Database(tmp_path))
    assert book.read() == []
    book.write("seen", client="site-1")
    book.write("head", classes=np.int64(3), accuracy=np.float32(0.5), missing=("a",))
    first, second = book.read()
    assert (first["event"], first["client"]) == ("seen", "site-1")
    assert (second["classes"], second["accuracy"], second["missing"]) == (3, 0.5, ["a"])


def test_another_process_reads_new_events(tmp_path):
    writer, reader = EventLog(Database(tmp_path)), EventLog(Database(tmp_path))
    assert writer.read() == []
    for n in range(3):
        writer.write("seen", client=f"site-{n}")
        assert [e["client"] for e in reader.read()] == [f"site-{i}" for i in range(n + 1)]


def test_foreign_text_is_cut_and_escaped(tmp_path):
    book = EventLog(Database(tmp_path))
    book.write("declined", reason="\x1b[31m\n\u202e" + "x" * 10_000, missing=["a"] * 10_000)
    book.write("seen", client="\ud800\x1b")
    mine, theirs = book.read()
    assert mine["reason"].startswith(r"\x1b[31m\n\u202ex")
    assert (len(mine["reason"]), len(mine["missing"])) == (MAX_TEXT, MAX_ITEMS)
    assert theirs["client"] == r"\ud800\x1b"


def test_an_event_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    database = Database(tmp_path)
    with full_disk(database), caplog.at_level(logging.WARNING):
        EventLog(database).write("seen", client="x" * 500, missing=["y" * 500] * 500)
    assert EventLog(database).read() == []
    assert "seen not written" in caplog.text


def test_the_store_writes_one_event_per_decision(tmp_path):
    sites = Sites("site-1", "site-2")
    store = sites.store(tmp_path / "state")
    first = sites.envelope("site-1", "may", upload(1, classes=("cat", "dog")))
    second = sites.envelope("site-2", "may", upload(2))
    forged = sites.envelope("site-1", "june", key=SiteKey.generate())
    other = sites.envelope("site-1", "june", fingerprint="0" * 64)
    for blob in (first, first, second, forged, other, b"garbage"):
        store.receive(blob)
    events = store.events.read()
    assert [(e["client"], e["outcome"], e["verified"]) for e in events] == [
        ("site-1", "accepted", True),
        ("site-1", "duplicate", True),
        ("site-2", "accepted", True),
        ("site-1", "refused", False),
        ("site-1", "refused", True),
        ("?", "refused", False),
    ]
    assert events[0]["bytes"] == len(first)
    assert (events[0]["rows"], sum(n for _, n in events[0]["classes"])) == (20, 20)
    assert [label for label, _ in events[0]["classes"]] == ["cat", "dog"]
    assert events[3]["classes"] is None
    store.close()
