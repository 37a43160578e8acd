"""How much one site may say: caps on rows, comparison with other sites, quotas of classes."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.federation.protocol.receipts import Code
from fedran.federation.server.store import admission
from fedran.federation.server.store import store as module
from fedran.federation.server.store.admission import why_unusual
from fedran.federation.server.store.schema import describe_upload
from helpers.federation.made_federation import (
    RANDOM,
    SETTINGS,
    SUMMARIES,
    D,
    M,
    Sites,
    repeated,
    summary,
    upload,
)

UNIT = fedran.RandomFeatures(D, M, seed=1, source="test")
UNIT_SUMMARIES = {"message": "summary", "out_features": M, "seed": 1}


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


def larger(seed, times):
    """An upload that states its rows several times."""
    points = fedran.decode(upload(seed))
    return fedran.encode(replace(points, counts=points.counts * times, digest=None))


def larger_summary(seed, times):
    """The same of a summary, with accounts that agree."""
    rng = np.random.default_rng(seed)
    y = rng.choice([0, 1], 20)
    y[:2] = 0, 1
    s = fedran.summarize(RANDOM(rng.random((20, D))), y, rank=8, fingerprint=RANDOM.fingerprint)
    return fedran.encode(repeated(s, times))


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
        ({"site-1": 10}, Code.ACCEPTED),  # no cap for one of them: compared with the median
    ):
        total = sites.secure_sum(1, "may", ["site-1", "site-2"])
        assert make_store(caps, **SUMMARIES).receive(total).code == code


def test_without_a_cap_many_times_the_median_of_the_others_waits(sites, make_store):
    store = make_store(row_multiple=5.0)
    codes = [r.code for r in send(store, sites, upload(1), larger(2, 5), larger(3, 6), upload(4))]
    # The median of 20 and 100 rows is 60, so that the third may send 300.
    assert codes == [Code.ACCEPTED] * 4
    june = send(store, sites, upload(5), larger(6, 5), larger(7, 12), task="june")
    assert [r.code for r in june] == [Code.ACCEPTED, Code.ACCEPTED, Code.QUARANTINED]
    assert "240 rows, 12 times the median of the other sites" in june[2].reason


def test_a_cap_replaces_the_comparison_with_the_median(sites, make_store):
    store = make_store({"site-2": 10_000}, row_multiple=2.0)
    assert [r.code for r in send(store, sites, upload(1), larger(2, 400))] == [Code.ACCEPTED] * 2


def test_the_first_upload_waits_if_it_is_large(sites, make_store, monkeypatch):
    monkeypatch.setattr(admission, "FIRST_ROWS", 100)
    store = make_store()
    assert store.receive(sites.envelope("site-1", "may", larger(1, 6))).code == Code.QUARANTINED
    assert store.receive(sites.envelope("site-2", "may", larger(2, 5))).code == Code.ACCEPTED
    # Uploads of the sender itself are no reference: it cannot raise its own limit.
    assert store.receive(sites.envelope("site-2", "june", larger(3, 6))).code == Code.QUARANTINED


def test_a_site_with_many_uploads_does_not_move_the_median(sites, make_store):
    store = make_store(row_multiple=3.0)
    send(store, sites, upload(1), upload(2), upload(3))
    for n in range(20):
        store.receive(sites.envelope("site-3", f"task-{n}", larger(n, 3)))
    receipt = store.receive(sites.envelope("site-4", "may", larger(9, 4)))
    assert receipt.code == Code.QUARANTINED


def test_rows_that_a_site_claims_hardly_move_the_ridge(sites, make_store):
    """Ten million rows with everything cut away multiplied lambda by about 80."""
    store = make_store(**SUMMARIES)
    send(store, sites, summary(1), summary(2), summary(3))
    before = store.solve().diagnosis.lam
    for times in (4, 5, 500_000):
        store.receive(sites.envelope("site-4", f"x{times}", larger_summary(4, times)))
    assert store.solve().diagnosis.lam < 3 * before
    assert len(store.aggregator.absorbed) == 5


def test_energy_is_compared_with_the_rows_that_a_site_may_send(sites, make_store):
    """Few rows of much energy: the mean over its own rows is below the limit of the scale."""
    store = make_store(**SUMMARIES)
    send(store, sites, summary(1), summary(2), summary(3))
    loud = store.receive(sites.envelope("site-4", "may", summary(4, scale=9.0)))
    assert (loud.code, "would be usual" in loud.reason) == (Code.QUARANTINED, True)
    usual = store.receive(sites.envelope("site-4", "june", summary(5, scale=3.0)))
    assert usual.code == Code.ACCEPTED


def test_a_flat_spectrum_that_is_almost_all_cut_waits(sites, make_store):
    store = make_store(**UNIT_SUMMARIES)
    for n in range(3):
        blob = summary(n, phi=UNIT)
        code = store.receive(sites.envelope(f"site-{n + 1}", "may", blob)).code
        assert code == Code.ACCEPTED
    s = fedran.decode(summary(7, phi=UNIT))
    value = s.accounts.energy / (s.accounts.n_rows - len(s.classes))
    cut = s.accounts.energy - value
    size = np.float32(np.sqrt(value) / np.linalg.norm(s.factor[:, 0]))
    lie = replace(
        s,
        factor=s.factor[:, :1] * size,
        sums=replace(s.sums, sums=s.class_sums * 1e-6),
        accounts=replace(s.accounts, cut=cut, eps_G=value, eps_G_fro=cut, eps_quant=0.0, eps_B=0.0),
        digest=None,
    )
    receipt = store.receive(sites.envelope("site-4", "may", fedran.encode(lie)))
    assert receipt.code == Code.QUARANTINED
    assert "declared as cut" in receipt.reason


def test_rows_of_zeros_among_unit_rows_wait(sites, make_store):
    store = make_store(**UNIT_SUMMARIES)
    wide = fedran.RandomFeatures(D, 2048, seed=1, source="test")
    settings = replace(store.settings, out_features=2048)
    Z = np.random.default_rng(0).random((20, D))
    Z[:15] = 0
    s = fedran.summarize(wide(Z), [0, 1] * 10, 8, fingerprint=wide.fingerprint)
    blob = sites.envelope("site-1", "may")
    found = describe_upload(module.open_envelope(blob).statement, s, blob)
    assert "rows of zeros?" in why_unusual(found, store.state, settings, store.roster)


def test_accounts_that_the_rows_of_one_site_cannot_have_are_refused(sites, make_store):
    s = fedran.decode(summary(7))
    held = float(np.sum(s.sigma**2))
    lies = {"cut": s.accounts.cut + held, "eps_G": held, "eps_G_fro": held}
    lie = replace(
        s, factor=s.factor[:, :0], accounts=replace(s.accounts, **lies), digest=None
    ).validate()
    receipt = make_store(**SUMMARIES).receive(sites.envelope("site-1", "may", fedran.encode(lie)))
    assert (receipt.code, "accounts.cut" in receipt.reason) == (Code.INVALID, True)


def test_classes_of_a_site_are_limited_over_all_its_uploads(sites, make_store):
    store = make_store(classes_per_site=3)
    assert send(store, sites, upload(1, classes=(0, 1)))[0].code == Code.ACCEPTED
    blobs = upload(2, classes=(1, 2, 3)), upload(3, classes=(4, 5, 6))
    june = send(store, sites, *blobs, task="june")
    assert [r.code for r in june] == [Code.TOO_MANY_CLASSES, Code.ACCEPTED]
    assert "classes_per_site" in june[0].reason


def test_the_budget_of_the_offer_is_enforced_for_sites_and_not_for_sums(sites, make_store):
    blob = summary(1)
    store = make_store(budget_bytes=len(blob) - 1, **SUMMARIES)
    receipt = store.receive(sites.envelope("site-1", "may", blob))
    assert (receipt.code, "budget" in receipt.reason) == (Code.TOO_LARGE, True)
    assert store.receive(sites.secure_sum(1, "may", ["site-2"], blob)).code == Code.ACCEPTED


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
