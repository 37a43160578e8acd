"""Damage of a database is noticed, and a damaged upload is named."""

import random
import sqlite3
from contextlib import closing

import pytest

pytest.importorskip("flwr")

from fedran.federation.ops.maintenance import verify
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.sqlite_file import StoreDamaged, StoreVersion
from helpers.federation.made_federation import Sites, upload

TASKS = [f"task-{n}" for n in range(4)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The file of a database with accepted uploads."""
    folder, sites = tmp_path_factory.mktemp("whole"), Sites("site-1", "site-2")
    store = sites.store(folder)
    for n, task in enumerate(TASKS):
        store.receive(sites.envelope("site-1", task, upload(n, classes=range(30), n=150)))
        store.database.set_task(task, asked=["site-1"])
    store.receive(sites.envelope("site-2", "june"))
    store.close()
    return (folder / "store.db").read_bytes()


def contents(data, folder):
    """Client and task of every upload -> its bytes in the file."""
    folder.mkdir(exist_ok=True)
    (folder / "store.db").write_bytes(data)
    query = "SELECT client, task, content FROM {} JOIN envelopes ON envelope = sha256"
    with closing(sqlite3.connect(folder / "store.db")) as sql:
        rows = list(sql.execute(query.format("uploads")))
    return {(client, task): content for client, task, content in rows}


def damage(data, folder):
    """What a verification of these bytes finds."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    (folder / "store.db").write_bytes(data)
    try:
        with closing(Database(folder, read_only=True)) as database:
            return verify(database)
    except (StoreDamaged, StoreVersion) as reason:
        return [str(reason)]


def test_an_intact_database_is_verified_also_while_it_is_written(whole, tmp_path):
    (tmp_path / "store.db").write_bytes(whole)
    with closing(Database(tmp_path)) as database:
        assert verify(database) == []
        with database.transaction():
            database.set_task("being written")
            with closing(Database(tmp_path, read_only=True)) as other:
                assert verify(other) == []


def test_a_flipped_bit_in_any_upload_is_noticed_and_the_upload_named(whole, tmp_path):
    rng = random.Random(0)
    for (client, task), content in contents(whole, tmp_path / "whole").items():
        at = whole.index(content[-40:]) + rng.randrange(40)
        data = bytearray(whole)
        data[at] ^= 1 << rng.randrange(8)
        expected = [f"the upload of {client} for {task} is not what was written"]
        assert damage(bytes(data), tmp_path / "x") == expected


def test_no_altered_page_changes_an_upload_unnoticed(whole, tmp_path):
    expected, rng, noticed = contents(whole, tmp_path / "whole"), random.Random(1), 0
    for start in range(0, len(whole), 4096):
        data = whole[:start] + rng.randbytes(4096) + whole[start + 4096 :]
        found = damage(data, tmp_path / "x")
        noticed += bool(found)
        assert found or contents(data, tmp_path / "y") == expected, start
    assert noticed > len(whole) / 4096 / 2


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9])
def test_a_truncated_database_is_noticed(cut, whole, tmp_path):
    assert damage(whole[: int(cut * len(whole))], tmp_path)


def test_a_damaged_table_stops_the_start_and_a_damaged_upload_does_not(whole, tmp_path):
    """All uploads may be gigabytes; each is verified when it is read."""
    content = contents(whole, tmp_path / "whole")["site-1", "task-2"]
    at = whole.index(content[-40:])
    (tmp_path / "store.db").write_bytes(whole[:at] + b"\0" + whole[at + 1 :])
    with closing(Database(tmp_path)) as database:
        database.require_sound()
        root = "SELECT rootpage FROM sqlite_master WHERE name = 'uploads'"
        ((page,),) = database.query(root)
    start = 4096 * (page - 1)
    (tmp_path / "store.db").write_bytes(whole[:start] + b"\xff" * 4096 + whole[start + 4096 :])
    remedies = "fedran federation verify.*fedran federation restore"
    with closing(Database(tmp_path)) as database, pytest.raises(StoreDamaged, match=remedies):
        database.require_sound()
