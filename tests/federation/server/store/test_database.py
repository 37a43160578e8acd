"""The database keeps what was committed, all of it or nothing, and detects damage."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.federation.ops.maintenance import verify
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.server.store import sqlite_file
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.forgetting import check_record
from fedran.federation.server.store.schema import VERSION
from fedran.federation.server.store.sqlite_file import StoreDamaged, StoreFailed, StoreVersion
from helpers.federation.made_federation import Sites, full_disk, large

TESTS = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def blobs():
    sites = Sites("site-1")
    uploads = (sites.envelope("site-1", f"task-{n}") for n in range(3))
    return [*uploads, sites.secure_sum(1, "june", ["site-1"])]


def names(database):
    return [task.task for task in database.tasks()]


def add(database, blob):
    envelope = open_envelope(blob)
    return database.add_upload(envelope.statement, fedran.decode(envelope.upload), blob)


@pytest.fixture
def database(blobs, tmp_path):
    found = Database(tmp_path)
    for blob in blobs:
        add(found, blob)
    yield found
    found.close()


def test_uploads_are_read_in_order_of_acceptance(database, blobs, tmp_path):
    again = Database(tmp_path, read_only=True)
    for found in (database, again):
        assert [found.envelope(u) for u in found.uploads()] == blobs
        assert len(found.uploads()) == 4
        assert [u.number for u in found.uploads()] == [1, 2, 3, 4]
        assert [u.task for u in found.uploads()] == ["task-0", "task-1", "task-2", "june"]
    first, *_, last = again.uploads()
    message = fedran.decode(open_envelope(blobs[0]).upload)
    assert first.digest == open_envelope(blobs[0]).statement.digest
    assert (first.rows, dict(first.classes)) == (20, message.rows_per_class())
    summary = fedran.decode(open_envelope(blobs[-1]).upload)
    assert (last.rows, last.energy) == (20, summary.accounts.energy)
    assert dict(last.classes) == dict(zip(summary.classes, summary.counts, strict=True))
    assert (last.key, last.members) == (("cohort-1", "june"), (("site-1", "june"),))
    again.close()


def test_only_the_owner_can_read_the_files(database, tmp_path):
    names = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.iterdir()}
    assert names == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


def test_a_commit_is_synced_before_it_returns(database):
    assert database.sql.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert database.sql.execute("PRAGMA synchronous").fetchone() == (2,)
    assert database.sql.execute("PRAGMA foreign_keys").fetchone() == (1,)


def test_a_client_has_one_upload_per_task(database, blobs):
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        add(database, blobs[0])
    assert len(database.uploads()) == 4


def test_a_transaction_that_fails_leaves_nothing(database):
    def change_and_fail():
        with database.transaction():
            database.set_task("may")
            database.set_nodes({"site-1": ("7", "key")})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        change_and_fail()
    assert (database.tasks(), database.nodes()) == ([], {})
    database.set_task("may")
    assert names(database) == ["may"]


def test_a_full_disk_leaves_the_database_as_it_was(database):
    blob = Sites("site-1").envelope("site-1", "later", large(1))
    with full_disk(database), pytest.raises(StoreFailed, match="disk is full"):
        add(database, blob)
    assert len(database.uploads()) == 4
    add(database, blob)
    assert [database.envelope(u) for u in database.uploads()][-1] == blob


WRITER = """
import resource, signal, sys
sys.path.insert(0, {here!r})
from pathlib import Path
import fedran
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.server.store.database import Database
database = Database({folder!r})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
blob = Path({blob!r}).read_bytes()
envelope = open_envelope(blob)
message = fedran.decode(envelope.upload)
size = Path({folder!r}, "store.db-wal").stat().st_size
failed = 0
for room in range(0, len(blob) + 40_000, 1500):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, resource.RLIM_INFINITY))
    try:
        database.add_upload(envelope.statement, message, blob)
        break
    except OSError:
        failed += 1
        assert len(database.uploads()) == 4
print(failed, len(database.uploads()), flush=True)
import os
os._exit(0)
"""


def test_a_write_that_fails_at_any_length_leaves_the_database_as_it_was(database, blobs, tmp_path):
    """The system refuses to let the file grow, at another place in each attempt."""
    database.close()
    (tmp_path / "blob").write_bytes(Sites("site-1").envelope("site-1", "later", large(1)))
    program = WRITER.format(here=str(TESTS), folder=str(tmp_path), blob=str(tmp_path / "blob"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    failed, count = map(int, done.stdout.split())
    assert failed >= 3
    assert count == 5
    again = Database(tmp_path)
    assert [again.envelope(u) for u in again.uploads()] == [
        *blobs,
        (tmp_path / "blob").read_bytes(),
    ]
    again.close()


def test_two_processes_write_without_losing_each_other(database, tmp_path):
    other = Database(tmp_path)
    for n in range(5):
        database.set_task(f"a{n}")
        other.set_task(f"b{n}")
    assert sorted(names(database)) == sorted(f"{x}{n}" for x in "ab" for n in range(5))
    with database.transaction():
        assert "c" not in names(other)
        database.set_task("c")
        assert "c" not in names(other)
    assert "c" in names(other)
    other.close()


def test_a_process_that_waits_too_long_for_another_is_told(database, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.05)
    other = Database(tmp_path)
    with database.transaction(), pytest.raises(StoreFailed, match="locked"):
        other.set_task("may")
    other.close()


def test_damage_of_an_envelope_is_noticed_when_it_is_read(database, blobs, tmp_path):
    upload = database.uploads()[1]
    with database.transaction():
        database.sql.execute(
            "UPDATE envelopes SET content = ? WHERE sha256 = ?", (blobs[0], upload.envelope)
        )
    database.close()
    again = Database(tmp_path)
    assert again.envelope(again.uploads()[0]) == blobs[0]
    with pytest.raises(StoreDamaged, match="the upload of site-1 for task-1 is not what was"):
        again.envelope(again.uploads()[1])
    again.close()


def test_another_file_is_not_taken_for_a_database(tmp_path):
    (tmp_path / "store.db").write_bytes(b"something else entirely" * 50)
    with pytest.raises(StoreDamaged, match="the database is damaged"):
        Database(tmp_path)
    (tmp_path / "store.db").unlink()
    other = sqlite3.connect(tmp_path / "store.db")
    other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(StoreDamaged, match="got another one"):
        Database(tmp_path)


def test_a_database_of_another_version_is_refused(database, tmp_path):
    database.sql.execute("PRAGMA user_version = 99")
    database.close()
    for read_only in (False, True):
        with pytest.raises(StoreVersion, match="got 99; use the version of fedran that wrote it"):
            Database(tmp_path, read_only=read_only)


RELEASES = sorted(Path(__file__).parent.glob("store-*.sql"))


@pytest.mark.parametrize("release", RELEASES, ids=[path.stem for path in RELEASES])
def test_the_database_of_every_release_opens(release, tmp_path):
    with closing(sqlite3.connect(tmp_path / "store.db")) as made:
        made.executescript(release.read_text())
        version = made.execute("PRAGMA user_version").fetchone()[0]
        tables = set(made.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))
    with closing(Sites("site-1").store(tmp_path)) as store:
        assert verify(store.database) == []
        uploads = store.database.uploads()
        assert [u.key for u in uploads][-1] == ("site-1", "may"), "a revision comes last"
        assert len(uploads) == 4
        assert len(store.solve().classes) == 2
        assert {t.client for t in store.database.tombstones()} == {"site-3"}
        (record,) = (r for r in store.database.records() if check_record(r))
        assert "site-3" in record
        assert store.database.heads()[0].task == "may"
    with closing(Database(tmp_path / "new")) as new:
        now = set(new.query("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))
    assert version < VERSION or tables == now, "the schema changed, and its version did not"


def test_a_missing_database_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected the database of a server"):
        Database(tmp_path, read_only=True)
    assert list(tmp_path.iterdir()) == []
