"""An earlier classifier is in service again until the owner releases the newest one."""

import json
from contextlib import closing

import pytest

pytest.importorskip("flwr")

from fedran.core.errors import Refused
from fedran.federation.ops.decisions import forget, release_head, roll_back
from fedran.federation.server.head.head import update_head
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store.store import Store
from fedran.federation.status.reader import Reader
from helpers.federation.made_federation import Sites, upload

SITES = ("site-1", "site-2")
MARGIN = 2.0


@pytest.fixture(scope="module")
def sites():
    return Sites(*SITES)


@pytest.fixture
def paths(sites, tmp_path):
    found = ServerPaths(tmp_path / "server")
    found.nodes.mkdir(parents=True)
    text = 'federation = "trial"\nin_features = 6\n'
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
        return update_head(store, None, task, MARGIN)


def test_the_head_of_an_earlier_task_is_in_service_bit_for_bit_until_it_is_released(paths, sites):
    first, digest = run(paths, sites, "may", 0)
    run(paths, sites, "june", 2)
    assert roll_back(paths, "may") == (digest, True)
    assert (paths.state / "head.fedran").read_bytes() == first
    status = Reader(paths.folder).read()
    assert status.head.digest == digest
    assert "rolled back to the classifier after task may" in status.held.reason
    assert "release" in status.held.commands[-1]
    assert run(paths, sites, "july", 4) == (first, digest), "new uploads do not end it"
    newest = release_head(paths)
    assert newest not in ("", digest)
    assert Reader(paths.folder).read().held is None


def test_what_was_forgotten_does_not_come_back_with_a_rollback(paths, sites):
    first, digest = run(paths, sites, "may", 0)
    run(paths, sites, "june", 2)
    roll_back(paths, "may")
    forget(paths, "site-2")
    assert (paths.state / "head.fedran").read_bytes() != first, "forgetting ends a rollback"
    again, identical = roll_back(paths, "may")
    assert not identical
    assert again != digest
    assert (paths.state / "head.fedran").read_bytes() != first


def test_a_task_without_a_head_is_refused(paths, sites):
    run(paths, sites, "may", 0)
    with pytest.raises(Refused, match=r"a task after which a head was solved \(may\), got june"):
        roll_back(paths, "june")
    with closing(Store.open(paths.folder, paths.settings())) as store:
        assert not json.loads(store.database.fact("held") or "{}")
