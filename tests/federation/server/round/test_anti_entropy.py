"""After a restored backup, sites send again what the server lost, and nothing else."""

import json
import shutil
from contextlib import closing

import pytest

pytest.importorskip("flwr")

from flwr.app import MessageType

import fedran
from fedran.federation.flower.records import make_record
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.messages import open_envelope, read_settled
from fedran.federation.protocol.receipts import Code, read_receipts
from fedran.federation.server.round.quorum import lost_uploads
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.store import RESTORED
from fedran.federation.site.outbox import Outbox
from fedran.wire.validation import Header
from helpers.federation.fleet import NAMES, Site, served
from helpers.federation.flower_messages import fields_of


class KeepingSite(Site):
    """A site with an outbox: it sends what is pending and reports what is settled."""

    def __init__(self, client, folder, *blobs):
        super().__init__(client)
        self.outbox = Outbox(folder)
        for blob in blobs:
            self.outbox.put(open_envelope(blob))

    def __call__(self, message):
        for receipt in read_receipts(fields_of(message)["receipts"]):
            self.outbox.settle(receipt)
        if message.metadata.message_type == MessageType.QUERY:
            return super().__call__(message)
        sent = {task: self.outbox.envelope(task) for task in self.outbox.pending()}
        fields = {"client": self.client, "head": self._digest(), "told": ""}
        return make_record({**fields, "settled": self.outbox.settled()}, sent)


@pytest.fixture
def nodes(sites, tmp_path):
    found = {}
    for n, name in enumerate(NAMES, 11):
        found[n] = KeepingSite(name, tmp_path / name, sites.envelope(name, "may"))
    return found


def test_sites_send_again_what_a_restored_backup_does_not_contain(server, sites, nodes, tmp_path):
    server("may", nodes)
    server.store.database.copy_to(tmp_path / "backup.db")
    for name, node in zip(NAMES, nodes.values(), strict=True):
        node.outbox.put(open_envelope(sites.envelope(name, "june")))
    server("june", nodes)
    whole = fedran.encode(server.store.aggregator)
    server.close()
    shutil.copy(tmp_path / "backup.db", server.folder / "store.db")
    with closing(Database(server.folder)) as database:  # as `restore` does
        database.set_fact(RESTORED, json.dumps(NAMES))
    away = nodes.pop(13)
    newest = (server.folder / "head.fedran").read_bytes()
    server("", nodes)
    assert len(server.store.database.uploads()) == 5
    assert [task.state for task in server.store.database.tasks()][1:] == ["restored"]
    assert server.store.restored == ["site-3"]
    assert (server.folder / "head.fedran").read_bytes() == newest, "an older head was made"
    assert served(server.folder)["nodes"] == []
    server("", {**nodes, 13: away})
    assert served(server.folder)["nodes"] == ["11", "12", "13"]
    assert fedran.encode(server.store.aggregator) == whole
    assert server.store.restored == []


def test_a_site_that_has_sent_everything_cannot_open_a_task(server, sites, nodes, tmp_path):
    nodes[11].outbox.put(open_envelope(sites.envelope("site-1", "june")))
    server("may", nodes)
    assert nodes[11].outbox.receipt("june").code == Code.UNKNOWN_TASK


def test_a_forgotten_upload_is_not_asked_for_again(server, nodes):
    server("may", nodes)
    server.store.forget("site-2", None, "me", SiteKey.generate())
    server("", nodes)
    assert nodes[12].outbox.receipt("may").code == Code.FORGOTTEN
    assert nodes[12].outbox.pending() == []
    assert served(server.folder)["nodes"] == ["11", "12", "13"]
    assert ("site-2", "may") not in server.store.aggregator.absorbed


def test_a_site_can_only_ask_about_its_own_uploads(server, nodes):
    server("may", nodes)
    digest = open_envelope(nodes[11].outbox.envelope("may")).statement.digest
    assert lost_uploads(server.store, "site-1", [("may", digest)]) == []
    (receipt,) = lost_uploads(server.store, "stranger", [("may", digest)])
    assert (receipt.code, receipt.client) == (Code.LOST, "stranger")


@pytest.mark.parametrize(
    "given", [3, [1], [["may"]], [["may", 3]], [["../x", "a" * 64]], [["a", "b"]]]
)
def test_a_report_of_anything_but_tasks_and_digests_is_refused(given):
    with pytest.raises(ValueError, match="expected"):
        read_settled(Header({"settled": given}))
