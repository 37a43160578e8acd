"""How much one site may say: caps on rows, quotas of classes, the budget of an upload."""

from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

from fedran.federation.protocol.receipts import Code
from fedran.federation.server.store import admission
from fedran.federation.server.store import store as module
from helpers.federation.made_federation import SETTINGS, SUMS, Sites, upload


@pytest.fixture(scope="module")
def sites():
    return Sites("site-1", "site-2", "site-3", "site-4")


@pytest.fixture
def make_store(sites, tmp_path):
    made = []

    def make(rows=None, **changes):
        roster = replace(sites.roster, rows=rows or {})
        made.append(module.Store(tmp_path / f"s{len(made)}", replace(SETTINGS, **changes), roster))
        return made[-1]

    yield make
    for store in made:
        store.close()


def send(store, sites, *blobs, task="may"):
    return [
        store.receive(sites.envelope(f"site-{i}", task, blob)) for i, blob in enumerate(blobs, 1)
    ]


def test_more_rows_than_the_roster_allows_are_refused(sites, make_store):
    store = make_store({"site-1": 19, "site-2": 20})
    first, second = send(store, sites, upload(1), upload(2))
    assert (first.code, second.code) == (Code.TOO_MANY_ROWS, Code.ACCEPTED)
    assert "at most 19 per task" in first.reason
    assert not first.final  # the owner may raise the cap


def test_the_cap_of_a_sum_is_that_of_its_members(sites, make_store):
    for caps, code in (
        ({"site-1": 10, "site-2": 10}, Code.ACCEPTED),
        ({"site-1": 10, "site-2": 9}, Code.TOO_MANY_ROWS),
        ({"site-1": 10}, Code.ACCEPTED),  # no cap for one of them
    ):
        total = sites.secure_sum(1, "may", ["site-1", "site-2"])
        assert make_store(caps, **SUMS).receive(total).code == code


def test_classes_of_a_site_are_limited_over_all_its_uploads(sites, make_store):
    store = make_store(classes_per_site=3)
    assert send(store, sites, upload(1, classes=(0, 1)))[0].code == Code.ACCEPTED
    blobs = upload(2, classes=(1, 2, 3)), upload(3, classes=(4, 5, 6))
    june = send(store, sites, *blobs, task="june")
    assert [r.code for r in june] == [Code.TOO_MANY_CLASSES, Code.ACCEPTED]
    assert "classes_per_site" in june[0].reason


def test_the_budget_of_the_offer_is_enforced_for_sites_and_not_for_sums(sites, make_store):
    small = {"budget_bytes": 1024}
    large = sites.envelope("site-1", "may", upload(1, n=600, group_size=1, min_group=1))
    receipt = make_store(**small).receive(large)
    assert (receipt.code, "budget" in receipt.reason) == (Code.TOO_LARGE, True)
    total = sites.secure_sum(1, "may", ["site-2"])
    assert make_store(**small, **SUMS).receive(total).code == Code.ACCEPTED


def test_labels_whose_head_no_site_could_read_are_refused(sites, make_store, monkeypatch):
    """Two uploads with thousands of empty classes stopped the delivery of heads."""
    store = make_store()
    assert send(store, sites, upload(1))[0].code == Code.ACCEPTED
    limits = replace(admission.DEFAULT_LIMITS, classes=3)
    monkeypatch.setattr(admission, "DEFAULT_LIMITS", limits)
    receipt = store.receive(sites.envelope("site-2", "may", upload(2, classes=(5, 6, 7))))
    assert (receipt.code, "sites can read" in receipt.reason) == (Code.TOO_MANY_CLASSES, True)
    fewer = store.receive(sites.envelope("site-2", "may", upload(2, classes=(5, 1))))
    assert fewer.code == Code.ACCEPTED
