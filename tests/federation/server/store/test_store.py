"""Which uploads the store accepts and refuses."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.protocol.receipts import Code
from fedran.federation.server.store import store as module
from helpers.federation.made_federation import (
    PHI,
    Sites,
    summary,
    upload,
)


@pytest.fixture(scope="module")
def sites():
    return Sites("site-1", "site-2", "site-3")


def outcomes(store, *blobs):
    return [store.receive(b).outcome for b in blobs]


def test_the_same_upload_counts_once(sites, store):
    blob = sites.envelope("site-1", "may")
    assert outcomes(store, blob, blob, blob) == ["accepted", "duplicate", "duplicate"]
    assert list(store.aggregator.absorbed) == [("site-1", "may")]
    assert len(store.database.uploads()) == 1


@pytest.mark.parametrize("make", [upload, summary])
def test_the_head_equals_one_solve_over_all_messages(make, request, sites):
    store = request.getfixturevalue("store" if make is upload else "sums")
    plain = fedran.Aggregator(fingerprint=store.fingerprint)
    for number, task in ((1, "may"), (2, "may"), (1, "june")):
        data = make(number, classes=(0, 1) if task == "may" else (2, 3))
        blob = sites.envelope(f"site-{number}", task, data)
        if make is summary:
            blob = sites.secure_sum(number, task, [f"site-{number}"], data)
        assert store.receive(blob).settled
        plain.absorb(fedran.decode(data), client=open_envelope(blob).statement.client, task=task)
    assert store.solve().classes == (0, 1, 2, 3)
    assert fedran.encode(store.solve()) == fedran.encode(plain.solve(store.ridge))


@pytest.mark.parametrize("landmarks", [3, 4096])
def test_a_head_does_not_depend_on_the_order_of_arrival(landmarks, sites, tmp_path):
    blobs = [
        sites.envelope(f"site-{i}", f"task-{j}", upload(9 * i + j))
        for i in (1, 2, 3)
        for j in (1, 2)
    ]
    heads = []
    for n, order in enumerate((blobs, blobs[::-1], blobs[2:] + blobs[:2])):
        store = sites.store(tmp_path / str(n), landmarks=landmarks)
        assert {store.receive(blob).outcome for blob in order} == {"accepted"}
        heads.append(fedran.encode(store.solve()))
        store.close()
    assert heads[0] == heads[1] == heads[2]
    assert len(fedran.decode(heads[0]).landmarks) <= landmarks


def test_classes_are_balanced_as_the_settings_say(sites, tmp_path):
    store = sites.store(tmp_path / "s", class_weight="balanced")
    plain = fedran.Aggregator(fingerprint=store.fingerprint)
    for client, classes in (("site-1", (0, 1)), ("site-2", (0,)), ("site-3", (0,))):
        data = upload(len(plain.absorbed), classes=classes)
        assert store.receive(sites.envelope(client, "may", data)).settled
        plain.absorb(fedran.decode(data), client=client, task="may")
    balanced = fedran.encode(plain.solve(class_weight="balanced"))
    assert fedran.encode(store.solve()) == balanced != fedran.encode(plain.solve())
    store.close()
    with pytest.raises(ValueError, match='class_weight needs privacy = "none"'):
        sites.store(tmp_path / "t", class_weight="balanced", privacy="secure", classes=[0, 1])


def test_groups_below_min_group_are_refused(sites, tmp_path):
    store = sites.store(tmp_path / "s", min_group=4)
    small = sites.envelope("site-1", "may", upload(1, group_size=1, min_group=1))
    receipt = store.receive(small)
    assert "groups of at least 4 rows" in receipt.reason
    assert store.receive(sites.envelope("site-1", "may", upload(1, min_group=4))).settled
    store.close()


@pytest.mark.parametrize(
    "wrong",
    [
        summary(1),
        upload(1, phi=fedran.KernelFeatures(7, source="test")),
        fedran.encode(fedran.condense(np.zeros((0, 6)), [])),
    ],
    ids=["a summary", "another width", "nothing"],
)
def test_what_is_no_message_of_points_of_this_federation_is_refused(wrong, sites, store):
    blob = sites.envelope("site-1", "may", wrong, fingerprint=PHI.fingerprint.hash)
    receipt = store.receive(blob)
    assert (receipt.outcome, len(store.database.uploads())) == ("refused", 0)


REFUSED = [
    ("wrong key", {"key": "other"}, "signature: expected a signature by the key of site-1"),
    ("another federation", {"federation": "elsewhere"}, "federation: expected trial"),
    ("other features", {"fingerprint": "0" * 64}, "backbone or feature map differs"),
]


@pytest.mark.parametrize(("_", "changes", "words"), REFUSED, ids=[r[0] for r in REFUSED])
def test_a_refused_upload_leaves_no_trace(_, changes, words, sites, store):
    store.receive(sites.envelope("site-2", "may"))
    before = len(store.database.uploads())
    if "key" in changes:
        changes = {"key": SiteKey.generate()}
    receipt = store.receive(sites.envelope("site-1", "may", **changes))
    assert (receipt.outcome, receipt.client) == ("refused", "site-1")
    assert words in receipt.reason
    assert not receipt.settled
    assert list(store.aggregator.absorbed) == [("site-2", "may")]
    assert len(store.database.uploads()) == before


def test_an_envelope_cannot_be_replayed_elsewhere(sites, store, tmp_path):
    """The signature covers the task and the federation."""
    first = open_envelope(sites.envelope("site-1", "may"))
    moved = replace(first, statement=replace(first.statement, task="june")).to_bytes()
    assert "signature" in store.receive(moved).reason
    other = sites.store(tmp_path / "other", federation="second")
    assert "federation: expected second" in other.receive(first.to_bytes()).reason
    claimed = replace(first, statement=replace(first.statement, federation="second")).to_bytes()
    assert "signature" in other.receive(claimed).reason
    other.close()


def test_a_different_upload_for_a_known_key_is_refused(sites, store):
    store.receive(sites.envelope("site-1", "may", upload(1)))
    receipt = store.receive(sites.envelope("site-1", "may", upload(2)))
    assert receipt.outcome == "refused"
    assert "already accepted for site-1, may" in receipt.reason
    assert len(store.database.uploads()) == 1


@pytest.mark.parametrize("blob", [b"", b"x" * 100, b"\x00" * 5000])
def test_random_bytes_are_refused(blob, store):
    assert store.receive(blob).outcome == "refused"


def test_a_signed_envelope_with_a_damaged_summary_is_refused(sites, store):
    data = bytearray(upload(1))
    data[-3] ^= 1
    receipt = store.receive(sites.envelope("site-1", "may", bytes(data)))
    assert receipt.outcome == "refused"
    assert len(store.database.uploads()) == 0


def test_labels_outside_the_announced_classes_are_refused(sites, tmp_path):
    store = sites.store(tmp_path / "s", classes=[0, 1])
    assert store.receive(sites.envelope("site-1", "may", upload(1))).outcome == "accepted"
    strange = store.receive(sites.envelope("site-2", "may", upload(1, classes=(1, 7))))
    assert "labels of this federation, got 7" in strange.reason
    store.close()


def test_no_rows_count_twice_in_secure_sums_and_none_of_a_site_alone(sites, sums):
    both = ["site-1", "site-2"]
    assert sums.receive(sites.secure_sum(1, "may", both)).outcome == "accepted"
    alone = sums.receive(sites.envelope("site-3", "may", summary(11)))
    assert (alone.code, "expected a secure sum" in alone.reason) == (Code.INVALID, True)
    assert "in a sum of cohort-1" in sums.receive(sites.secure_sum(2, "may", both[:1])).reason
    assert sums.receive(sites.secure_sum(1, "june", both)).outcome == "accepted"


def test_only_the_server_can_sign_a_sum_of_other_sites(sites, sums):
    forged = sites.secure_sum(1, "may", ["site-2"], key=sites.keys["site-1"])
    assert sums.receive(forged).code == Code.BAD_SIGNATURE
    honest = open_envelope(sites.envelope("site-1", "may", summary(11)))
    claim = replace(honest.statement, members=(("site-2", "may"),))
    signed = replace(honest, statement=claim, signature=sites.keys["site-1"].sign(claim))
    assert sums.receive(signed.to_bytes()).code == Code.FOREIGN_MEMBERS
    assert (len(sums.database.uploads()), sums.state.covered) == (0, {})
    assert sums.receive(sites.secure_sum(1, "may", ["site-2"])).outcome == "accepted"


def test_a_secure_sum_ends_when_a_member_is_forgotten(sites, sums):
    kept = sums.receive(sites.secure_sum(1, "june", ["site-2"]))
    for number, sum_of in ((1, ["site-1", "site-2"]), (2, ["site-3"])):
        sums.receive(sites.secure_sum(number, "may", sum_of))
    found = sums.forget("site-1", None, "me", SiteKey.generate())
    assert [u.key for u in found.sums] == [("cohort-1", "may")]
    assert {(t.client, t.task) for t in found.tombstones} == {("site-1", "may")}
    assert {u.key for u in sums.database.uploads()} == {("cohort-1", "june"), ("cohort-2", "may")}
    assert kept.settled
    again = sums.receive(sites.secure_sum(4, "may", ["site-1", "site-2"]))
    assert again.code == Code.FORGOTTEN
    assert sums.receive(sites.secure_sum(5, "may", ["site-2"])).code == Code.ACCEPTED


def test_rows_that_are_all_zero_are_refused(sites, sums):
    zero = sites.secure_sum(1, "may", ["site-1"], summary(1, scale=0.0))
    assert "all zero" in sums.receive(zero).reason


def test_an_unexpected_error_in_a_check_refuses_the_upload(sites, store, monkeypatch, caplog):
    monkeypatch.setattr(module, "check_fingerprint", lambda *_: 1 / 0)
    receipt = store.receive(sites.envelope("site-1", "may"))
    assert (receipt.code, receipt.reason[:8]) == (Code.SERVER_ERROR, "an error")
    assert "ZeroDivisionError" in caplog.text
    assert len(store.database.uploads()) == 0
