"""The store survives crashes, restarts and a full disk: exactly once, bit for bit."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.federation.server.store import state as module
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.sqlite_file import StoreDamaged
from fedran.federation.server.store.state import SUM
from helpers.federation.made_federation import (
    SUMMARIES,
    Sites,
    full_disk,
    large,
    same_state,
    summary,
    upload,
)

TESTS = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def sites():
    return Sites("site-1", "site-2", "site-3")


@pytest.mark.parametrize("make", [upload, summary])
def test_a_restart_ends_in_the_same_state(make, sites, tmp_path):
    settings = SUMMARIES if make is summary else {}
    whole = sites.store(tmp_path / "whole", **settings)
    for n in range(8):
        blob = sites.envelope("site-1", f"task-{n}", make(n, classes=(n, n + 1)))
        whole.receive(blob)
        broken = sites.store(tmp_path / "broken", **settings)
        broken.receive(blob)
        if n % 3 == 1:
            broken.solve()
        broken.close()
    again = sites.store(tmp_path / "broken", **settings)
    assert same_state(again, whole)
    assert fedran.encode(again.solve()) == fedran.encode(whole.solve())
    assert (tmp_path / "broken" / SUM).exists() == (make is summary)
    for store in (again, whole):
        store.close()


def test_points_are_read_when_a_head_is_solved_and_not_before(sites, tmp_path, monkeypatch):
    store = sites.store(tmp_path / "s")
    for n in range(3):
        store.receive(sites.envelope("site-1", f"task-{n}"))
    store.close()
    read = []
    of_upload = Database.message
    monkeypatch.setattr(Database, "message", lambda d, u: read.append(u.task) or of_upload(d, u))
    again = sites.store(tmp_path / "s")
    assert again.receive(sites.envelope("site-2", "task-0", upload(77))).outcome == "accepted"
    assert again.receive(sites.envelope("site-1", "task-0")).outcome == "duplicate"
    assert read == []
    again.solve()
    again.solve()
    assert read == ["task-0", "task-1", "task-2", "task-0"]
    again.close()


def test_a_store_with_a_full_disk_accepts_nothing(sites, store):
    store.receive(sites.envelope("site-1", "may"))
    second = sites.envelope("site-2", "may", large(2))
    with full_disk(store.database), pytest.raises(OSError, match="disk is full"):
        store.receive(second)
    assert store.database.count() == 1
    assert [e["client"] for e in store.events.read()] == ["site-1"]
    assert ("site-2", "may") not in store.aggregator.absorbed
    assert store.receive(second).outcome == "accepted"


def test_a_sum_that_could_not_be_written_loses_nothing(sites, tmp_path, monkeypatch):
    store = sites.store(tmp_path / "s", **SUMMARIES)
    store.receive(sites.envelope("site-1", "may", summary(1)))

    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "save", full)
        assert store.solve().classes == (0, 1)
    store.close()
    again = sites.store(tmp_path / "s", **SUMMARIES)
    assert set(again.aggregator.absorbed) == {("site-1", "may")}
    again.close()


@pytest.mark.parametrize("name", ["head.fedran", SUM])
def test_a_missing_database_beside_what_was_made_from_it_is_refused(name, tmp_path):
    (tmp_path / name).write_bytes(b"solved before")
    with pytest.raises(StoreDamaged, match=f"{name} was made from it; restore it from a backup"):
        Database(tmp_path)


def test_a_sum_of_other_uploads_is_not_used(sites, tmp_path, caplog):
    """An older database was put in the place of the newer one."""
    for name, tasks in (("a", ("may",)), ("b", ("may", "june", "july"))):
        store = sites.store(tmp_path / name, **SUMMARIES)
        for n, task in enumerate(tasks):
            store.receive(sites.envelope("site-1", task, summary(n)))
        store.solve()
        store.close()
    shutil.copy(tmp_path / "a" / "store.db", tmp_path / "b" / "store.db")
    found, wanted = (sites.store(tmp_path / name, **SUMMARIES) for name in "ba")
    assert same_state(found, wanted)
    assert f"{SUM} is not of this database's uploads" in caplog.text
    assert not (tmp_path / "b" / SUM).exists()
    for store in (found, wanted):
        store.close()


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.5, 0.999])
def test_a_damaged_sum_is_noticed_and_made_up_for(share, sites, tmp_path, caplog):
    whole, store = (sites.store(tmp_path / name, **SUMMARIES) for name in ("whole", "s"))
    for n in range(4):
        for s in (whole, store):
            s.receive(sites.envelope("site-1", f"task-{n}", summary(n)))
    store.solve()
    store.close()
    path = tmp_path / "s" / SUM
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 4
    path.write_bytes(data)
    again = sites.store(tmp_path / "s", **SUMMARIES)
    assert same_state(again, whole)
    assert f"{SUM} is damaged" in caplog.text
    for s in (again, whole):
        s.close()


def test_an_older_sum_is_completed(sites, tmp_path, caplog):
    whole, store = (sites.store(tmp_path / name, **SUMMARIES) for name in ("whole", "s"))
    for n in range(4):
        for s in (whole, store):
            s.receive(sites.envelope("site-1", f"task-{n}", summary(n)))
        if n == 1:
            store.solve()
    store.close()
    again = sites.store(tmp_path / "s", **SUMMARIES)
    assert same_state(again, whole)
    assert caplog.text == ""
    for s in (again, whole):
        s.close()


SERVER = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from helpers.federation.made_federation import SETTINGS
from fedran.federation.server.store.store import Store
from fedran.federation.protocol.roster import Roster
store = Store({state!r}, SETTINGS, Roster.load({roster!r}))
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
    for record in final.database.envelopes():
        whole.receive(record)
    assert same_state(final, whole)
    assert final.database.count() == 30
    for store in (final, whole):
        store.close()


@pytest.mark.parametrize("mode", ["kill", "EIO", "ENOSPC"])
def test_a_fault_at_any_file_call_loses_nothing_and_counts_nothing_twice(mode, tmp_path):
    """Every write, sync, truncation, rename and deletion of an accepted upload."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library, helpers = tmp_path / "faults.so", TESTS / "helpers/federation"
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(helpers / "file_faults.c")]
    subprocess.run([*command, "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, str(helpers / "file_faults.py"), str(tmp_path), mode],
        env={**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
