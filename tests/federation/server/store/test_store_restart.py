"""The store survives crashes, restarts and a full disk: exactly once, bit for bit."""

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
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.sqlite_file import StoreDamaged
from helpers.federation.made_federation import (
    SUMS,
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
    settings = SUMS if make is summary else {}
    whole = sites.store(tmp_path / "whole", **settings)
    for n in range(8):
        data = make(n, classes=(n, n + 1))
        blob = sites.envelope("site-1", f"task-{n}", data)
        if make is summary:
            blob = sites.secure_sum(1, f"task-{n}", ["site-1"], data)
        whole.receive(blob)
        broken = sites.store(tmp_path / "broken", **settings)
        broken.receive(blob)
        if n % 3 == 1:
            broken.solve()
        broken.close()
    again = sites.store(tmp_path / "broken", **settings)
    assert same_state(again, whole)
    assert fedran.encode(again.solve()) == fedran.encode(whole.solve())
    assert len(again.aggregator.absorbed) == 8
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
    assert len(store.database.uploads()) == 1
    assert [e["client"] for e in store.events.read()] == ["site-1"]
    assert ("site-2", "may") not in store.aggregator.absorbed
    assert store.receive(second).outcome == "accepted"


def test_a_missing_database_beside_what_was_made_from_it_is_refused(tmp_path):
    (tmp_path / "head.fedran").write_bytes(b"solved before")
    with pytest.raises(StoreDamaged, match=r"head\.fedran was made from it; restore it from"):
        Database(tmp_path)


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
    for record in map(final.database.envelope, final.database.uploads()):
        whole.receive(record)
    assert same_state(final, whole)
    assert len(final.database.uploads()) == 30
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
