"""The store survives crashes, restarts and a full disk: exactly once, bit for bit."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from fedran.federation.server import store as module
from fedran.federation.server.journal import StoreDamaged
from helpers.made_federation import Sites, same_state, upload

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sites():
    return Sites("site-1", "site-2", "site-3", "edge")


@pytest.fixture
def store(sites, tmp_path):
    found = sites.store(tmp_path / "state")
    yield found
    found.close()


def test_a_restart_ends_in_the_same_state(sites, tmp_path):
    whole = sites.store(tmp_path / "whole")
    for n in range(8):
        blob = sites.envelope("site-1", f"task-{n}", upload(n, classes=(n, n + 1)))
        whole.receive(blob)
        broken = sites.store(tmp_path / "broken")
        broken.receive(blob)
        broken.close()
    again = sites.store(tmp_path / "broken")
    assert same_state(again, whole)
    assert len(list((tmp_path / "broken").glob("snapshot-*.fedran"))) == 2
    for store in (again, whole):
        store.close()


def test_a_store_with_a_full_disk_accepts_nothing(sites, store, tmp_path, monkeypatch):
    store.receive(sites.envelope("site-1", "may"))
    state = store.journal.end

    def full(record):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store.journal, "append", full)
        with pytest.raises(OSError, match="No space left"):
            store.receive(sites.envelope("site-2", "may"))
    assert store.journal.end == state
    assert ("site-2", "may") not in store.aggregator.absorbed
    assert store.receive(sites.envelope("site-2", "may")).outcome == "accepted"


def test_a_snapshot_that_could_not_be_written_loses_nothing(sites, tmp_path, monkeypatch):
    store = sites.store(tmp_path / "s", snapshot_every=1)
    store.receive(sites.envelope("site-1", "may"))

    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomically", full)
        receipt = store.receive(sites.envelope("site-2", "may"))
    assert receipt.outcome == "accepted"
    store.close()
    again = sites.store(tmp_path / "s")
    assert set(again.aggregator.absorbed) == {("site-1", "may"), ("site-2", "may")}
    again.close()


def test_a_journal_that_is_older_than_its_snapshot_is_refused(sites, tmp_path):
    store = sites.store(tmp_path / "s", snapshot_every=1)
    store.receive(sites.envelope("site-1", "may"))
    store.close()
    (tmp_path / "s" / "journal").unlink()
    with pytest.raises(StoreDamaged, match="restore both from one backup"):
        sites.store(tmp_path / "s")


SERVER = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from helpers.made_federation import RULES
from fedran.federation.server.store import Store
from fedran.federation.protocol.identity import Roster
store = Store({state!r}, RULES, Roster.load({roster!r}))
for path in sorted(Path({inbox!r}).iterdir()):
    receipt = store.receive(path.read_bytes())
    print(path.name, receipt.outcome, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_killed_at_any_moment_a_restart_ends_as_if_undisturbed(sites, tmp_path):
    inbox, state = tmp_path / "inbox", tmp_path / "state"
    inbox.mkdir()
    for n in range(30):
        blob = sites.envelope("site-1", f"task-{n:02d}", upload(n, classes=(n % 5, 5)))
        (inbox / f"{n:02d}").write_bytes(blob)
    sites.roster.save(tmp_path / "roster.toml")
    program = SERVER.format(
        here=str(TESTS), state=str(state), roster=str(tmp_path / "roster.toml"), inbox=str(inbox)
    )
    acknowledged, kills = set(), 0
    for attempt in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
        ) as server:
            line = server.stdout.readline()
            time.sleep(0.001 * (attempt % 7))
            server.send_signal(signal.SIGKILL)
            rest = server.stdout.read()
        said = [text.split() for text in (line + rest).splitlines() if len(text.split()) == 2]
        acknowledged |= {name for name, outcome in said if outcome in ("accepted", "duplicate")}
        kills += server.returncode == -signal.SIGKILL
    final = sites.store(state)
    kept = {task for _, task in final.aggregator.absorbed}
    assert {f"task-{name}" for name in acknowledged} <= kept
    assert kills
    for path in sorted(inbox.iterdir()):
        assert final.receive(path.read_bytes()).settled
    whole = sites.store(tmp_path / "whole")
    for record in final.journal.records():
        whole.receive(record)
    assert same_state(final, whole)
    assert final.journal.count == 30
    for store in (final, whole):
        store.close()
