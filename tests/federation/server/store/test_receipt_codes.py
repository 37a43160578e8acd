"""Every decision about an upload has its own code."""

from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.receipts import Code
from fedran.federation.server.store import admission
from helpers.federation.made_federation import SUMS, D, Sites, upload


@pytest.fixture(scope="module")
def sites():
    return Sites("site-1", "site-2")


@pytest.fixture
def store(sites, tmp_path, monkeypatch):
    monkeypatch.setattr(admission, "DEFAULT_LIMITS", replace(admission.DEFAULT_LIMITS, classes=3))
    found = sites.store(tmp_path / "state")
    found.tasks = frozenset({"may"})
    assert found.receive(sites.envelope("site-2", "may", upload(1))).code == Code.ACCEPTED
    yield found
    found.close()


OTHER = fedran.KernelFeatures(D, source="another")
CASES = {
    Code.ACCEPTED: ("site-1", "may", {}),
    Code.DUPLICATE: ("site-2", "may", {"data": upload(1)}),
    Code.CONFLICT: ("site-2", "may", {"data": upload(2)}),
    Code.WRONG_FEDERATION: ("site-1", "may", {"federation": "other"}),
    Code.BAD_SIGNATURE: ("site-1", "may", {"key": SiteKey.generate()}),
    Code.UNKNOWN_TASK: ("site-1", "june", {}),
    Code.WRONG_FINGERPRINT: ("site-1", "may", {"fingerprint": OTHER.fingerprint.hash}),
    Code.TOO_MANY_CLASSES: ("site-1", "may", {"data": upload(1, classes=(0, 1, 2, 3))}),
    Code.INVALID: ("site-1", "may", {"data": b"no points"}),
}


@pytest.mark.parametrize("code", CASES)
def test_the_store_answers_with_the_code_of_its_decision(code, sites, store):
    client, task, changes = CASES[code]
    receipt = store.receive(sites.envelope(client, task, **changes))
    assert (receipt.code, receipt.client, receipt.task) == (code, client, task)
    assert store.events.read()[-1]["code"] == code.value


def test_a_client_that_is_not_in_the_roster_is_refused_as_unknown(store):
    receipt = store.receive(Sites("site-9").envelope("site-9", "may"))
    assert (receipt.code, receipt.outcome) == (Code.UNKNOWN_CLIENT, "refused")
    assert "a site of the roster" in receipt.reason


def test_rows_that_are_in_through_a_sum_are_a_conflict(sites, tmp_path):
    store = sites.store(tmp_path / "sums", **SUMS)
    assert store.receive(sites.secure_sum(1, "may", ["site-1"])).settled
    assert store.receive(sites.secure_sum(2, "may", ["site-1"])).code == Code.CONFLICT
    store.close()
