"""Classes that the owner opens per task: no upload brings another one."""

from dataclasses import replace

import pytest

pytest.importorskip("flwr")

from fedran.federation.ops.tasks import open_classes
from fedran.federation.protocol.receipts import Code
from fedran.federation.server.settings import ServerPaths
from helpers.federation.fleet import honest, offers
from helpers.federation.made_federation import SETTINGS, upload


@pytest.fixture
def store(sites, tmp_path):
    found = sites.store(tmp_path / "state", new_classes="task")
    yield found
    found.close()


def test_an_upload_may_contain_classes_of_its_task_and_of_earlier_ones(store, sites):
    database = store.database
    database.open_classes("may", [0, 1])
    database.open_classes("june", [2])
    store.open_task("may")
    store.open_task("june")
    sent = [("may", (0, 1)), ("may", (0, 2)), ("june", (0, 2)), ("june", (2, 3))]
    blobs = [
        sites.envelope(f"site-{1 + i % 2}", task, upload(i, classes=classes))
        for i, (task, classes) in enumerate(sent)
    ]
    codes = [store.receive(blob).code for blob in blobs]
    assert codes == [Code.ACCEPTED, Code.INVALID, Code.ACCEPTED, Code.INVALID]
    database.open_classes("june", [3])
    assert database.opened_classes() == {"may": (0, 1), "june": (2, 3)}
    assert store.receive(blobs[3]).code == Code.ACCEPTED


def test_without_an_opened_class_nothing_is_accepted(store, sites):
    assert store.receive(sites.envelope("site-1", "may")).code == Code.INVALID


def test_opened_classes_must_be_listed_where_there_is_a_list(store, sites):
    store.settings = replace(store.settings, classes=[0, 2])
    store.database.open_classes("may", [0, 1, 2])
    assert store.allowed_classes("may") == (0, 2)
    store.settings = replace(SETTINGS, classes=[0, 2])
    assert store.allowed_classes("may") == (0, 2)


def test_sites_are_told_which_classes_are_open(server, sites):
    server("first", {})
    server.store.database.open_classes("may", [0, 1])
    server.store.settings = replace(SETTINGS, new_classes="task")
    server("may", honest(sites), new_classes="task")
    assert offers(server)[0]["classes"] == [0, 1]
    assert server.store.database.count() == 3


def test_the_owner_opens_classes_that_the_settings_allow(tmp_path):
    path = tmp_path / "server.toml"
    settings = 'federation = "trial"\nin_features = 6\nclasses = [1, "cat"]\n'
    path.write_text(settings)
    with pytest.raises(ValueError, match="only with new_classes = 'task'"):
        open_classes(ServerPaths(tmp_path), "may", [1])
    path.write_text(f'{settings}new_classes = "task"\n')
    with pytest.raises(ValueError, match=r"among those of server\.toml"):
        open_classes(ServerPaths(tmp_path), "may", ["1"])
    open_classes(ServerPaths(tmp_path), "may", ["cat"])
