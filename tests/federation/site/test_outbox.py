"""The outbox: uploads are made once and sent until the server has them."""

from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.data.rows import Rows
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.store.store import Store
from helpers.federation.made_federation import SETTINGS
from helpers.federation.made_site import OFFER, rows, site_of


def test_an_upload_is_made_once(tmp_path):
    X, y = rows()
    calls = []

    def source(task):
        calls.append(task)
        return Rows(X + 0.01 * len(calls), y)

    site = site_of(tmp_path, X, y, source=source)
    first = site.prepare(OFFER)
    assert site.prepare(OFFER) == first
    again = site_of(tmp_path, X, y, source=source, key=site.key)
    assert again.prepare(OFFER) == first
    assert calls == ["may"]
    assert again.outbox.pending() == ["may"]


def test_a_refused_upload_is_sent_again_until_it_is_accepted(tmp_path):
    site = site_of(tmp_path, *rows())
    site.prepare(OFFER)
    site.outbox.settle(Receipt(Code.UNKNOWN_CLIENT, "site-1", "may", "d", "roster"))
    assert site.outbox.pending() == ["may"]
    site.outbox.settle(Receipt(Code.ACCEPTED, "site-1", "may", "d"))
    assert site.outbox.pending() == []


def test_an_upload_is_not_sent_again_after_a_conflict(tmp_path):
    key = SiteKey.generate()
    first, second = (
        site_of(tmp_path / name, *rows(seed=n), key=key) for n, name in enumerate("ab")
    )
    store = Store(tmp_path / "server", SETTINGS, Roster({"site-1": key.public}))
    assert store.receive(first.prepare(OFFER)).outcome == "accepted"
    conflict = store.receive(second.prepare(OFFER))
    assert (conflict.outcome, conflict.code) == ("refused", Code.CONFLICT)
    second.outbox.settle(conflict)
    assert second.outbox.pending() == []
    store.close()


def test_a_damaged_upload_is_made_again(tmp_path, caplog):
    site = site_of(tmp_path, *rows())
    whole = site.prepare(OFFER)
    site.prepare(replace(OFFER, task="june"))
    path = site.outbox.folder / "may.envelope"
    path.write_bytes(whole[: len(whole) // 2])
    assert site.outbox.to_make(["june"]) == ["may"]
    assert "task may: the upload in the outbox is damaged" in caplog.text
    assert site.prepare(OFFER) == whole
    assert (site.outbox.to_make([]), site.outbox.pending()) == ([], ["june", "may"])
    path.write_bytes(site.outbox.envelope("june"))
    assert site.outbox.envelope("may") is None
    site.outbox.settle(Receipt(Code.ACCEPTED, "site-1", "may", "d"))
    assert site.outbox.to_make([]) == []


def test_a_damaged_receipt_and_one_for_an_unknown_task_change_nothing(tmp_path):
    site = site_of(tmp_path, *rows())
    site.prepare(OFFER)
    site.outbox.settle(Receipt(Code.ACCEPTED, "site-1", "may", "d"))
    for torn in (b"", b"{", b"[]", b'{"outcome": "accepted"}', b"\xff"):
        (site.outbox.folder / "may.receipt").write_bytes(torn)
        assert site.outbox.pending() == ["may"]
    site.outbox.settle(Receipt(Code.ACCEPTED, "site-1", "june", "d"))
    assert site.outbox.receipt("june") is None
    with pytest.raises(Refused, match="task"):
        site.outbox.settle(Receipt(Code.ACCEPTED, "site-1", "../may", "d"))
