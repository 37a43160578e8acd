"""An earlier classifier is in service again until the owner releases the newest one."""

from contextlib import closing

import pytest

pytest.importorskip("flwr")

from fedran.core.errors import Refused
from fedran.federation.ops.decisions import forget, release_head, roll_back, vouch_for
from fedran.federation.server.head.head import update_head
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store.store import Store
from fedran.federation.status.reader import Reader
from helpers.federation.made_federation import Sites, upload

SITES = ("site-1", "site-2")


@pytest.fixture(scope="module")
def sites():
    return Sites(*SITES)


@pytest.fixture
def paths(sites, tmp_path):
    found = ServerPaths(tmp_path / "server")
    found.nodes.mkdir(parents=True)
    text = 'federation = "trial"\nin_features = 6\ntrusted = true\n'
    found.settings_file.write_text(f'{text}source = "test"\n')
    sites.roster.save(found.roster)
    return found


def run(paths, sites, task, seed, clients=SITES):
    """One task with an upload of each site; the head in service and its digest."""
    with closing(Store.open(paths.folder, paths.settings())) as store:
        store.open_task(task)
        for n, client in enumerate(clients):
            data = upload(seed + n, classes=(seed, seed + 1))
            assert store.receive(sites.envelope(client, task, data)).settled
        return update_head(store, None, task)


def test_the_head_of_an_earlier_task_is_in_service_bit_for_bit_until_it_is_released(paths, sites):
    first, digest = run(paths, sites, "may", 0)
    run(paths, sites, "june", 2)
    assert roll_back(paths, "may") == (digest, True)
    assert (paths.state / "head.fedran").read_bytes() == first
    status = Reader(paths.folder).read()
    assert status.head.digest == digest
    assert any("after task may is in service again" in f.text for f in status.findings)
    assert run(paths, sites, "july", 4) == (first, digest), "new uploads do not end it"
    newest = release_head(paths)
    assert newest not in ("", digest)
    assert not any("in service again" in f.text for f in Reader(paths.folder).read().findings)
    with pytest.raises(Refused, match="a head that was rolled back"):
        release_head(paths)


def test_what_was_forgotten_does_not_come_back_with_a_rollback(paths, sites):
    first, digest = run(paths, sites, "may", 0)
    run(paths, sites, "june", 2)
    roll_back(paths, "may")
    forget(paths, "site-2")
    assert (paths.state / "head.fedran").read_bytes() != first, "the rollback goes on without it"
    again, identical = roll_back(paths, "may")
    assert not identical
    assert again != digest
    assert (paths.state / "head.fedran").read_bytes() != first


def test_a_task_without_a_head_is_refused(paths, sites):
    run(paths, sites, "may", 0)
    with pytest.raises(Refused, match=r"a task after which a head was solved \(may\), got june"):
        roll_back(paths, "june")


def test_the_owner_vouches_for_a_site_whose_classes_wait_and_takes_it_back(paths, sites):
    text = paths.settings_file.read_text()
    paths.settings_file.write_text(text.replace("trusted = true", "trusted = false"))
    assert run(paths, sites, "may", 0, ("site-1",)) == (b"", "")
    assert [found.state for found in Reader(paths.folder).read().set_aside] == ["waits"]
    assert vouch_for(paths, "site-1") != ""
    assert Reader(paths.folder).read().set_aside == []
    assert vouch_for(paths, "site-1", withdraw=True) == ""
    assert not (paths.state / "head.fedran").exists()
    with pytest.raises(Refused, match="one with an upload, got site-2"):
        vouch_for(paths, "site-2")
