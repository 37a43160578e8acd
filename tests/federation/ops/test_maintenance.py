"""Backup, restore, verification and repair of a server's store; and what is forgotten."""

import hashlib
import io
import json
import shutil
import stat
import sys
from contextlib import closing

import pytest

pytest.importorskip("flwr")

import fedran
from fedran.cli.main import run
from fedran.core.errors import Refused
from fedran.federation.ops.decisions import forget, record_key, vouch_for
from fedran.federation.ops.maintenance import (
    back_up,
    restore,
    verify_store,
)
from fedran.federation.protocol.lockfile import AlreadyRunning, locked
from fedran.federation.protocol.receipts import Code
from fedran.federation.server.head.gate import judge
from fedran.federation.server.head.head import update_head
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store.forgetting import check_record
from fedran.federation.server.store.sqlite_file import StoreDamaged
from fedran.federation.server.store.store import Store
from fedran.federation.status.reader import Reader
from helpers.federation.made_federation import Sites, same_state, upload

SITES = ("site-1", "site-2", "site-3")
TASKS = ("may", "june", "july")


@pytest.fixture(scope="module")
def sites():
    return Sites(*SITES)


@pytest.fixture(scope="module")
def envelopes(sites):
    found = {}
    for n, client in enumerate(SITES[:3]):
        for k, task in enumerate(TASKS):
            data = upload(10 * n + k, classes=(k, k + 1))
            found[client, task] = sites.envelope(client, task, data)
    return found


@pytest.fixture
def paths(sites, tmp_path):
    return make_paths(sites, tmp_path / "server")


def make_paths(sites, folder):
    found = ServerPaths(folder)
    found.nodes.mkdir(parents=True)
    (found.nodes / "site-1.pub").write_text("key")
    text = 'federation = "trial"\nin_features = 6\ntrusted = true\n'
    found.settings_file.write_text(f'{text}source = "test"\n')
    sites.roster.save(found.roster)
    return found


def opened(paths):
    return closing(Store.open(paths.folder, paths.settings()))


def receive(paths, blobs):
    with opened(paths) as store:
        return [store.receive(blob).code for blob in blobs]


def state(paths):
    with opened(paths) as store:
        return fedran.encode(store.aggregator), {u.key: u.digest for u in store.database.uploads()}


def test_a_forgotten_site_was_never_seen(sites, envelopes, paths, tmp_path):
    """Bit for bit: state, and head."""
    receive(paths, envelopes.values())
    with opened(paths) as store:
        update_head(store, None, "july")
    found, record = forget(paths, "site-2")
    other = make_paths(sites, tmp_path / "other")
    rest = [blob for (client, _), blob in envelopes.items() if client != "site-2"]
    receive(other, rest)
    with opened(paths) as a, opened(other) as b:
        assert same_state(a, b)
        assert (a.solve().weights == b.solve().weights).all()
        assert (paths.state / "head.fedran").read_bytes() == fedran.encode(b.solve())
        assert a.database.served() == ("outdated", set())
    assert [t.task for t in found.tombstones] == list(TASKS)
    assert {t.client for t in found.tombstones} == {"site-2"}
    assert [h.task for h in found.heads] == ["july"]
    assert check_record(record.read_text(), record_key(paths)) == found.tombstones
    said, head = json.loads(record.read_text())["record"], paths.state / "head.fedran"
    assert said["head_after"] == hashlib.sha256(head.read_bytes()).hexdigest()
    assert [h["digest"] for h in said["heads"]] == [h.digest for h in found.heads]
    assert run(["federation", "verify", str(record)]) == 0
    assert verify_store(paths) == []
    assert receive(paths, [envelopes["site-2", "may"]]) == [Code.FORGOTTEN]
    again = sites.envelope("site-2", "may", upload(99))
    assert receive(paths, [again]) == [Code.FORGOTTEN]
    assert receive(paths, [sites.envelope("site-2", "august")]) == [Code.ACCEPTED]


def test_one_task_of_a_site_can_be_forgotten(sites, envelopes, paths, tmp_path):
    receive(paths, envelopes.values())
    found, _ = forget(paths, "site-1", "june")
    assert [(t.client, t.task) for t in found.tombstones] == [("site-1", "june")]
    other = make_paths(sites, tmp_path / "other")
    receive(other, [blob for key, blob in envelopes.items() if key != ("site-1", "june")])
    assert state(paths) == state(other)
    with pytest.raises(Refused, match="an upload of site-1 for june, got none"):
        forget(paths, "site-1", "june")


def test_nothing_of_a_forgotten_upload_is_left_in_any_file(envelopes, paths):
    blobs = [envelopes["site-2", "may"], envelopes["site-1", "may"]]
    receive(paths, blobs)
    forget(paths, "site-2")
    files = [p.read_bytes() for p in paths.state.rglob("*") if p.is_file()]
    assert any(blobs[1][-300:] in data for data in files)
    assert not any(blobs[0][-300:] in data for data in files)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stdin", "options", "forgotten", "words"),
    [
        (Terminal("y\n"), [], True, "Go on?"),
        (Terminal("\n"), [], False, "nothing was changed\n"),
        (io.StringIO("y\n"), [], False, "no terminal to ask at, and no --yes"),
        (io.StringIO(""), ["--yes"], True, "removed: site-1, may"),
    ],
)
def test_forget_says_what_is_lost_and_asks(
    stdin, options, forgotten, words, envelopes, paths, capsys, monkeypatch
):
    receive(paths, [envelopes["site-1", "may"], envelopes["site-2", "may"]])
    monkeypatch.setattr(sys, "stdin", stdin)
    code = run(["federation", "forget", str(paths.folder), "site-1", *options])
    said = "".join(capsys.readouterr())
    assert "the rows of site-1 in may leave the classifier, and it cannot send them again" in said
    assert words in said
    assert code == (0 if forgotten else 1)
    with opened(paths) as store:
        left = [upload.client for upload in store.database.uploads()]
    assert left == (["site-2"] if forgotten else ["site-1", "site-2"])


def test_the_last_upload_can_be_forgotten(envelopes, paths, capsys):
    receive(paths, [envelopes["site-1", "may"]])
    vouch_for(paths, "site-1")  # no other site has its classes
    assert run(["federation", "forget", str(paths.folder), "site-1", "--yes"]) == 0
    out = capsys.readouterr().out
    assert "earlier classifiers made with them: 1" in out
    assert "no upload is left to make a classifier of" in out
    assert not (paths.state / "head.fedran").exists()
    assert Reader(paths.folder).read().head is None
    assert receive(paths, [envelopes["site-2", "may"]]) == [Code.ACCEPTED]


def test_a_record_that_was_altered_is_refused(envelopes, paths, tmp_path):
    receive(paths, envelopes.values())
    _, path = forget(paths, "site-1")
    fields = json.loads(path.read_text())
    assert stat.S_IMODE((paths.folder / "record.key").stat().st_mode) == 0o600
    fields["record"]["removed"][0]["client"] = "site-3"
    with pytest.raises(Refused, match="the text that was signed"):
        check_record(json.dumps(fields))
    with pytest.raises(Refused, match="that this server signed"):
        check_record(path.read_text(), Sites("x").keys["x"].public)
    for text in ("", "[]", "{}", '{"record": {}, "key": 3, "signature": ""}'):
        with pytest.raises(Refused, match="record: expected"):
            check_record(text)


def test_a_backup_of_a_server_that_writes_restores_the_state(envelopes, paths, tmp_path):
    receive(paths, list(envelopes.values())[:4])
    wanted = state(paths)
    with opened(paths) as store, store.database.transaction():
        store.database.set_task("being written")
        back_up(paths, tmp_path / "backup")
    names = {str(p.relative_to(tmp_path / "backup")) for p in (tmp_path / "backup").rglob("*")}
    assert names == {"store.db", "server.toml", "roster.toml", "nodes", "nodes/site-1.pub"}
    assert stat.S_IMODE((tmp_path / "backup" / "store.db").stat().st_mode) == 0o600
    assert verify_store(ServerPaths(tmp_path / "backup")) == []
    receive(paths, list(envelopes.values())[4:])
    assert restore(paths, tmp_path / "backup") == []
    assert state(paths) == wanted
    assert list(paths.state.glob("replaced-1.db"))
    with opened(paths) as store:  # solved at once, before anything is asked for again
        head = store.solve([aside.part for aside in judge(store, None).set_aside])
        assert (paths.state / "head.fedran").read_bytes() == fedran.encode(head)
        assert store.database.served() == ("outdated", set())
        assert store.restored == sorted(SITES)
    shutil.rmtree(paths.state)
    restore(paths, tmp_path / "backup")
    assert state(paths) == wanted
    with pytest.raises(FileExistsError, match="not an empty folder"):
        back_up(paths, tmp_path / "backup")


@pytest.mark.parametrize("lost", [False, True], ids=["tombstones", "signed record"])
def test_what_was_forgotten_after_a_backup_stays_forgotten(lost, sites, envelopes, paths, tmp_path):
    receive(paths, envelopes.values())
    back_up(paths, tmp_path / "backup")
    _, record = forget(paths, "site-3")
    wanted = state(paths)
    if lost:
        shutil.rmtree(paths.state)
    again = restore(paths, tmp_path / "backup", [record] if lost else [])
    assert [t.client for t in again] == ["site-3"] * 3
    assert state(paths) == wanted
    assert receive(paths, [envelopes["site-3", "may"]]) == [Code.FORGOTTEN]
    back_up(paths, tmp_path / "second")
    shutil.rmtree(paths.state)
    assert restore(paths, tmp_path / "second") == []
    assert receive(paths, [envelopes["site-3", "may"]]) == [Code.FORGOTTEN]
    assert verify_store(paths) == []


def test_a_damaged_backup_is_not_restored(envelopes, paths, tmp_path):
    receive(paths, envelopes.values())
    back_up(paths, tmp_path / "backup")
    path = tmp_path / "backup" / "store.db"
    at = path.read_bytes().index(envelopes["site-1", "june"][-50:])
    damage(path, at)
    with pytest.raises(StoreDamaged, match="the upload of site-1 for june"):
        restore(paths, tmp_path / "backup")
    assert len(verify_store(paths)) == 0


def damage(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)


def test_verify_names_damage_of_the_database(envelopes, paths):
    receive(paths, envelopes.values())
    assert verify_store(paths) == []
    at = (paths.state / "store.db").read_bytes().index(envelopes["site-2", "may"][-50:])
    damage(paths.state / "store.db", at)
    assert "the upload of site-2 for may is not what was written" in verify_store(paths)
    (paths.state / "store.db").write_bytes(b"nothing" * 200)
    assert "the database is damaged" in verify_store(paths)[0]


def test_nothing_is_replaced_while_the_server_runs(envelopes, paths, tmp_path):
    receive(paths, [envelopes["site-1", "may"]])
    back_up(paths, tmp_path / "backup")
    with (
        locked(paths.folder / "log"),
        pytest.raises(AlreadyRunning, match="fedran federation down"),
    ):
        restore(paths, tmp_path / "backup")


def test_old_events_are_deleted_and_uploads_are_not(envelopes, paths):
    receive(paths, envelopes.values())
    with opened(paths) as store:
        assert len(store.events.read()) == 9
        with store.database.transaction():
            assert store.events.delete(0.0, 5) == 4
            assert store.events.delete(1e11, 5) == 5
        assert len(store.database.uploads()) == 9
