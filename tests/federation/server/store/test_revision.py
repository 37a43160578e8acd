"""A site may replace its own upload, which then leaves no trace in the state."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.core.errors import Refused
from fedran.data.rows import Rows
from fedran.federation.protocol.limits import MAX_REVISION
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.protocol.receipts import Code
from fedran.federation.server.round.quorum import lost_uploads
from fedran.federation.server.store.forgetting import check_record
from helpers.federation.made_federation import (
    PHI,
    Sites,
    same_state,
    upload,
)
from helpers.federation.made_site import OFFER, rows, site_of


@pytest.fixture(scope="module")
def sites():
    return Sites("site-1", "site-2", "site-3")


def fill(store, sites, tasks=("may", "june")):
    for n, client in enumerate(("site-1", "site-2", "site-3")):
        for k, task in enumerate(tasks):
            blob = sites.envelope(client, task, upload(10 * n + k, classes=(k, k + 1)))
            assert store.receive(blob).code == Code.ACCEPTED


def test_a_site_replaces_an_upload_a_limited_number_of_times(sites, store):
    fill(store, sites)
    for number, code in ((MAX_REVISION, Code.ACCEPTED), (MAX_REVISION + 1, Code.INVALID)):
        made = upload(100 + number, classes=(1,))
        assert store.receive(sites.envelope("site-1", "may", made, revision=number)).code == code


def test_revisions_of_one_message_have_a_record_each(sites, tmp_path):
    store = sites.store(tmp_path / "state")
    fill(store, sites)
    for n, task in enumerate(("may", "june")):
        made = upload(99 + n, classes=(1,))
        store.receive(sites.envelope("site-1", task, made, revision=1))
    written = {file.read_text() for file in (tmp_path / "records").iterdir()}
    assert written == set(store.database.records())
    assert len(written) == 2
    store.close()


def test_a_revision_replaces_the_upload_bit_for_bit(sites, tmp_path):
    store = sites.store(tmp_path / "state")
    fill(store, sites)
    old = store.database.uploads()[0]
    data = store.database.envelope(old)
    first = fedran.encode(store.solve())
    revised = sites.envelope("site-1", "may", upload(99, classes=(1,)), revision=1)
    assert store.receive(revised).code == Code.ACCEPTED
    assert store.receive(revised).code == Code.DUPLICATE
    other = sites.store(tmp_path / "other")
    for blob in map(store.database.envelope, store.database.uploads()):
        assert open_envelope(blob).statement.digest != old.digest
        assert other.receive(blob).code == Code.ACCEPTED
    assert same_state(store, other)
    assert len(store.database.uploads()) == 6
    assert {u.key: u.revision for u in store.database.uploads()}["site-1", "may"] == 1
    assert store.events.read()[-2]["revision"] == 1
    (file,) = (tmp_path / "records").iterdir()
    assert store.database.records() == [file.read_text()]
    assert check_record(file.read_text()) == []
    told = json.loads(file.read_text())["record"]["replaced"]
    assert (told["client"], told["task"], told["digest"]) == ("site-1", "may", old.digest)
    assert told["by"] == open_envelope(revised).statement.digest
    assert fedran.encode(store.solve()) == fedran.encode(other.solve()) != first
    store.close()
    again = sites.store(tmp_path / "state")
    assert same_state(again, other)
    files = [p.read_bytes() for p in (tmp_path / "state").iterdir()]
    assert not any(data[-200:] in content for content in files)
    for found in (again, other):
        found.close()


def test_a_class_is_withdrawn_by_a_revision(sites, store):
    store.receive(sites.envelope("site-1", "may", upload(1, classes=("cat", "dog"))))
    store.receive(sites.envelope("site-2", "may", upload(2, classes=("cat", "bird"))))
    store.receive(sites.envelope("site-1", "may", upload(3, classes=("cat",)), revision=1))
    assert store.solve().classes == ("bird", "cat")


def test_a_revision_must_have_a_higher_number_and_the_sites_signature(sites, store):
    fill(store, sites)
    before = fedran.encode(store.aggregator)
    first = sites.envelope("site-1", "may", upload(7))
    assert store.receive(first).code == Code.CONFLICT
    assert store.receive(sites.envelope("site-1", "may", upload(8), revision=2)).settled
    late = sites.envelope("site-1", "may", upload(9), revision=1)
    assert store.receive(late).code == Code.CONFLICT
    forged = sites.envelope("site-1", "may", upload(9), revision=3, key=sites.keys["site-2"])
    assert store.receive(forged).code == Code.BAD_SIGNATURE
    statement = open_envelope(late)
    moved = replace(statement, statement=replace(statement.statement, revision=9)).to_bytes()
    assert store.receive(moved).code == Code.BAD_SIGNATURE
    assert fedran.encode(store.aggregator) != before


@pytest.mark.parametrize("data", [b"nonsense", upload(3, min_group=1, group_size=1)])
def test_a_wrong_revision_changes_nothing_and_rebuilds_nothing(data, sites, store, monkeypatch):
    fill(store, sites)
    before = fedran.encode(store.aggregator)
    monkeypatch.setattr(store.state, "without", lambda _: 1 / 0)
    assert store.receive(sites.envelope("site-1", "may", data, revision=1)).code == Code.INVALID
    assert fedran.encode(store.aggregator) == before
    assert len(store.database.uploads()) == 6


def test_a_revision_that_a_backup_does_not_contain_is_asked_for_again(sites, store):
    fill(store, sites)
    digest = "ab" * 32
    (receipt,) = lost_uploads(store, "site-1", [("may", digest)])
    assert receipt.code == Code.LOST


def test_a_site_revises_its_upload_after_its_rows_changed(tmp_path, sites):
    X, y = rows(60)
    data = [Rows(X, y)]
    site = site_of(tmp_path, X, y, source=lambda _: data[0], key=sites.keys["site-1"])
    store = sites.store(tmp_path / "state")
    with pytest.raises(Refused, match="which can be revised, got none"):
        site.prepare(OFFER, revise=True)
    site.outbox.settle(store.receive(site.prepare(OFFER)))
    with pytest.raises(Refused, match="other rows than those of the upload"):
        site.prepare(OFFER, revise=True)
    kept = np.array(y) != 2
    data[0] = Rows(X[kept], [c for c in y if c != 2])
    assert site.outbox.pending() == []
    blob = site.prepare(OFFER, revise=True)
    assert site.outbox.pending() == ["may"]
    assert site.prepare(OFFER) == blob
    receipt = store.receive(blob)
    assert receipt.code == Code.ACCEPTED
    site.outbox.settle(receipt)
    assert store.solve().classes == (0, 1)
    assert open_envelope(blob).statement.revision == 1
    assert PHI.fingerprint.hash == OFFER.fingerprint.hash
    store.close()
