"""How much one site may say: the budget of an upload, and classes that a head can have."""

from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

from fedran.federation.protocol.receipts import Code
from fedran.federation.server.store import admission
from helpers.federation.made_federation import SUMS, Sites, upload


@pytest.fixture(scope="module")
def sites():
    return Sites("site-1", "site-2", "site-3", "site-4")


@pytest.fixture
def make_store(sites, tmp_path):
    made = []

    def make(**changes):
        made.append(sites.store(tmp_path / f"s{len(made)}", **changes))
        return made[-1]

    yield make
    for store in made:
        store.close()


def send(store, sites, *blobs, task="may"):
    return [
        store.receive(sites.envelope(f"site-{i}", task, blob)) for i, blob in enumerate(blobs, 1)
    ]


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
