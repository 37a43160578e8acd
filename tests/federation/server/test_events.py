"""The event log may lose a line, but it never stops the server."""

import json
import logging
import stat

import numpy as np
import pytest

pytest.importorskip("cryptography")

from fedran.federation.protocol.identity import SiteKey
from fedran.federation.server.events import MAX_ITEMS, MAX_TEXT, EventLog
from helpers.made_federation import Sites, same_state, upload


def test_events_are_read_as_written(tmp_path):
    book = EventLog(tmp_path / "log")
    assert book.read() == []
    book.write("seen", client="site-1")
    book.write("head", classes=np.int64(3), accuracy=np.float32(0.5), missing=("a",))
    first, second = book.read()
    assert (first["event"], first["client"]) == ("seen", "site-1")
    assert (second["classes"], second["accuracy"], second["missing"]) == (3, 0.5, ["a"])
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_a_second_read_returns_new_events_and_restarts_for_a_new_file(tmp_path):
    writer, reader = EventLog(tmp_path / "log"), EventLog(tmp_path / "log")
    for n in range(3):
        writer.write("seen", client=f"site-{n}")
        assert [e["client"] for e in reader.read()] == [f"site-{i}" for i in range(n + 1)]
    (tmp_path / "log").unlink()
    writer.write("seen", client="new")
    assert [e["client"] for e in reader.read()] == ["new"]


@pytest.mark.parametrize(
    "line",
    [
        *(b'{"at":1,"eve', b"\xff\xfe\x00", b"[1,2]", b"7", b"", b"[" * 100_000),
        *(b'{"event":"seen"}', b'{"at":true,"event":"seen"}', b'{"at":1e99,"event":"seen"}'),
        *(b'{"at":1,"event":5}', b'{"at":' + b"9" * 5000 + b',"event":"seen"}'),
    ],
)
def test_a_torn_or_foreign_line_does_not_affect_other_lines(line, tmp_path):
    book = EventLog(tmp_path / "log")
    book.write("seen", client="before")
    with book.path.open("ab") as file:
        file.write(line)  # and no end of line: a crash cut it off
    assert [e["client"] for e in book.read()] == ["before"]
    book.write("seen", client="after")
    assert [e["client"] for e in book.read()] == ["before", "after"]


def test_foreign_text_is_cut_and_escaped(tmp_path):
    book = EventLog(tmp_path / "log")
    book.write("declined", reason="\x1b[31m\n\u202e" + "x" * 10_000, missing=["a"] * 10_000)
    with book.path.open("ab") as file:
        file.write(b'{"at":1,"event":"seen","client":"\\ud800\\u001b"}\n')
    mine, theirs = book.read()
    assert mine["reason"].startswith(r"\x1b[31m\n\u202ex")
    assert (len(mine["reason"]), len(mine["missing"])) == (MAX_TEXT, MAX_ITEMS)
    assert theirs["client"] == r"\ud800\x1b"


def test_an_event_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        EventLog(tmp_path / "nowhere" / "log").write("seen", client="site-1")
    assert "seen not written" in caplog.text


def test_the_store_writes_one_event_per_decision(tmp_path):
    sites = Sites("site-1", "site-2")
    store = sites.store(tmp_path / "state")
    first = sites.envelope("site-1", "may", upload(1, classes=("cat", "dog")))
    loud = sites.envelope("site-2", "may", upload(2, scale=20.0))
    forged = sites.envelope("site-1", "june", key=SiteKey.generate())
    other = sites.envelope("site-1", "june", fingerprint="0" * 64)
    for blob in (first, first, loud, forged, other, b"garbage"):
        store.receive(blob)
    store.accept("site-2", "may")
    events = store.events.read()
    assert [(e["client"], e["outcome"], e["verified"]) for e in events] == [
        ("site-1", "accepted", True),
        ("site-1", "duplicate", True),
        ("site-2", "quarantined", True),
        ("site-1", "refused", False),
        ("site-1", "refused", True),
        ("?", "refused", False),
        ("site-2", "accepted", True),
    ]
    assert events[0]["bytes"] == len(first)
    assert (events[0]["rows"], sum(n for _, n in events[0]["classes"])) == (20, 20)
    assert [label for label, _ in events[0]["classes"]] == ["cat", "dog"]
    assert events[3]["classes"] is None
    assert "times the median" in events[2]["reason"]
    assert [e.get("released", False) for e in events] == [False] * 6 + [True]
    store.close()


def test_an_event_log_that_cannot_be_written_changes_nothing(tmp_path):
    sites = Sites("site-1")
    plain, broken = sites.store(tmp_path / "plain"), sites.store(tmp_path / "broken")
    broken.events = EventLog(tmp_path / "nowhere" / "log")
    blob = sites.envelope("site-1", "may")
    assert plain.receive(blob) == broken.receive(blob)
    assert same_state(plain, broken)
    line = plain.events.path.read_bytes()
    assert json.loads(line)["client"] == "site-1"
    for store in (plain, broken):
        store.close()
