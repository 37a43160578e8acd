"""A site whose upload was not accepted corrects its rows, and nobody waits for a known answer."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import MessageType

from fedran.core.errors import Refused
from fedran.data.rows import Rows
from fedran.federation.flower.records import make_record
from fedran.federation.protocol.messages import Offer
from fedran.federation.protocol.receipts import Code, Receipt, read_receipts
from fedran.federation.site.failures import text_for_server
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import SiteSettings
from fedran.federation.site.upload import Site as RealSite
from helpers.federation.fleet import NAMES, Site, honest
from helpers.federation.flower_messages import fields_of
from helpers.federation.made_federation import D
from helpers.federation.made_site import OFFER


class WorkingSite(Site):
    """A site that makes its uploads from rows that a test can change."""

    def __init__(self, client, key, folder, n):
        super().__init__(client)
        self.X = np.random.default_rng(3).random((n, D))
        settings = SiteSettings("trial", client, folder="data", min_class_count=1, hold_out=0)
        self.site = RealSite(settings, key, lambda _: self.rows(), Outbox(folder))

    def rows(self):
        return Rows(self.X, [i % 2 for i in range(len(self.X))])

    def __call__(self, message):
        outbox = self.site.outbox
        if message.metadata.message_type == MessageType.QUERY:
            for receipt in read_receipts(fields_of(message)["receipts"]):
                outbox.settle(receipt)
            return super().__call__(message)
        told = ""
        try:
            offer = Offer.read(fields_of(message)["offer"])
            self.site.prepare(replace(offer, budget_bytes=10**6))
        except Refused as reason:
            told = text_for_server(reason, outbox.folder)
        fields = {"client": self.client, "head": self._digest(), "told": told}
        fields |= {"settled": outbox.settled(), "waiting": []}
        return make_record(fields, {task: outbox.envelope(task) for task in outbox.pending()})


@pytest.fixture
def loud(sites, tmp_path):
    """A site that sends more bytes than the server's budget."""
    return WorkingSite("site-3", sites.keys["site-3"], tmp_path / "outbox", n=3000)


SMALL = {"deadline": 20, "budget_bytes": 2000, "group_size": 1, "min_group": 1}


@pytest.fixture
def nodes(sites, loud):
    return {**honest(sites, "may", NAMES[:2]), 13: loud}


def code(site):
    return site.site.outbox.receipt("may").code


def test_corrected_rows_replace_the_upload_that_was_refused(server, nodes, loud):
    assert server("may", nodes, **SMALL) == "complete"
    assert code(loud) == Code.TOO_LARGE
    loud.X = loud.X[:40]
    assert server("may", nodes, **SMALL) == "complete"
    assert code(loud) == Code.ACCEPTED
    assert len(server.store.aggregator.absorbed) == 3


def test_nobody_waits_for_an_upload_that_is_refused_again(server, nodes, loud):
    server("may", nodes, **SMALL)
    assert server("may", nodes, **SMALL) == "complete"
    assert server.seconds < 10
    assert code(loud) == Code.TOO_LARGE


@pytest.mark.parametrize(
    "code", [Code.ACCEPTED, Code.DUPLICATE, Code.CONFLICT, Code.FORGOTTEN, None]
)
def test_changed_rows_never_replace_an_upload_that_may_count(code, loud):
    first = loud.site.prepare(OFFER)
    if code is not None:
        loud.site.outbox.settle(Receipt(code, "site-3", "may", "d"))
    loud.X = loud.X[:40]
    assert loud.site.prepare(OFFER) == first


def test_another_offer_makes_a_new_upload_too(loud):
    first = loud.site.prepare(OFFER)
    loud.site.outbox.settle(Receipt(Code.TOO_LARGE, "site-3", "may", "d"))
    assert loud.site.prepare(OFFER) == first
    second = loud.site.prepare(replace(OFFER, group_size=10))
    assert second != first
    assert loud.site.outbox.pending() == ["may"]


def test_rows_that_were_deleted_meanwhile_change_nothing(loud):
    first = loud.site.prepare(OFFER)
    loud.site.outbox.settle(Receipt(Code.TOO_LARGE, "site-3", "may", "d"))

    def gone(task):
        raise FileNotFoundError(task)

    assert replace(loud.site, source=gone).prepare(OFFER) == first


def test_a_crash_while_an_upload_is_replaced_loses_nothing(loud, monkeypatch):
    """After the receipt is deleted, the old upload is sent again and gets its receipt again."""
    from fedran.federation.site import outbox

    first = loud.site.prepare(OFFER)
    loud.site.outbox.settle(Receipt(Code.TOO_LARGE, "site-3", "may", "d"))
    loud.X = loud.X[:40]
    write = outbox.write_atomically

    def crash(path, data):
        if path.suffix == ".envelope":
            raise ZeroDivisionError
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(outbox, "write_atomically", crash)
        with pytest.raises(ZeroDivisionError):
            loud.site.prepare(OFFER)
    assert loud.site.outbox.envelope("may") == first
    assert loud.site.outbox.pending() == ["may"]
    loud.site.outbox.settle(Receipt(Code.TOO_LARGE, "site-3", "may", "d"))
    assert loud.site.prepare(OFFER) != first
