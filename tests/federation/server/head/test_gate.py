"""A head that one upload made worse does not go into service, and the upload is named."""

from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.data.rows import Rows
from fedran.federation.protocol.class_counts import Count
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.server.head import gate
from fedran.federation.server.head.head import update_head
from helpers.federation.gated import VALIDATION, flipped, gated_sites, honest, rows, send, store_of


@pytest.fixture(scope="module")
def sites():
    return gated_sites()


@pytest.fixture
def store(sites, tmp_path):
    found = store_of(sites, tmp_path / "state")
    yield found
    found.close()


def held_events(store):
    return [e for e in store.events.read() if e["event"] == "held"]


def test_honest_tasks_with_new_classes_all_go_into_service(store, sites):
    for task, classes in (("may", (0, 1)), ("june", (2, 3)), ("july", (4,))):
        honest(store, sites, task, classes, range(1, 6))
        blob, _ = update_head(store, VALIDATION, task, 2.0)
        assert fedran.decode(blob).classes[-1] == classes[-1]
    assert held_events(store) == []


def test_earlier_classes_that_get_worse_hold_the_head_back_and_name_the_upload(store, sites):
    honest(store, sites, "may", (0, 1))
    first, digest = update_head(store, VALIDATION, "may", 2.0)
    honest(store, sites, "june", (2, 3))
    assert send(store, sites, "site-5", "june", flipped(rows(7, (0, 1), 30), 0, 1), times=4)
    blob, served = update_head(store, VALIDATION, "june", 2.0)
    assert (blob, served) == (first, digest)
    assert (store.folder / "head.fedran").read_bytes() == first
    assert (store.folder / "held.fedran").read_bytes() != first
    (event,) = held_events(store)
    assert "accuracy on the classes of task may falls from" in event["reason"]
    assert event["uploads"][0][:2] == ["site-5", "june"]
    assert update_head(store, VALIDATION, "", 2.0) == (first, digest)
    assert len(held_events(store)) == 1  # the operator is told once


def test_wrong_labels_of_new_classes_hold_the_head_back(store, sites):
    honest(store, sites, "may", (0, 1))
    first, _ = update_head(store, VALIDATION, "may", 2.0)
    honest(store, sites, "june", (2, 3))
    assert send(store, sites, "site-5", "june", flipped(rows(7, (2, 3)), 2, 3), times=4)
    assert update_head(store, VALIDATION, "june", 2.0)[0] == first
    (event,) = held_events(store)
    assert [u[:2] for u in event["uploads"]] == [["site-5", "june"]]


def test_a_class_that_does_not_exist_and_takes_rows_holds_the_head_back(store, sites):
    honest(store, sites, "may", (0, 1))
    first, _ = update_head(store, VALIDATION, "may", 2.0)
    honest(store, sites, "june", (2, 3))
    fake = Rows(rows(7, (0, 1, 2, 3)).X, [77] * 30)
    assert send(store, sites, "site-5", "june", fake, times=5)
    assert update_head(store, VALIDATION, "june", 2.0)[0] == first
    assert held_events(store)[0]["uploads"][0][:2] == ["site-5", "june"]


@pytest.mark.parametrize("most", [0, 1, 4])
def test_uploads_that_were_not_left_out_are_counted(most, store, sites, caplog, monkeypatch):
    """Only so many heads can be tested, and the largest uploads are left out first."""
    monkeypatch.setattr(gate, "MOST_BATCHES", 1)
    validation = replace(VALIDATION)
    object.__setattr__(validation, "most_heads", most)
    honest(store, sites, "may", (0, 1))
    update_head(store, validation, "may", 2.0)
    assert f"but {4 - most} smaller new uploads were not left out" in caplog.text or most == 4
    honest(store, sites, "june", (2, 3))
    assert send(store, sites, "site-5", "june", flipped(rows(7, (0, 1), 30), 0, 1), times=4)
    update_head(store, validation, "june", 2.0)
    (event,) = held_events(store)
    assert f"{5 - most} smaller new uploads were not left out" in event["reason"]
    assert ("no single one of the largest" in event["reason"]) == (not event["uploads"])
    assert bool(event["uploads"]) == (most > 0)


def test_a_held_head_is_explained_by_a_small_upload_of_a_later_batch(store, sites):
    """The liar has the fewest rows, and one head is tested at a time."""
    validation = replace(VALIDATION)
    object.__setattr__(validation, "most_heads", 1)
    honest(store, sites, "may", (0, 1))
    update_head(store, validation, "may", 2.0)
    for i in range(1, 5):
        assert send(store, sites, f"site-{i}", "june", rows(10 * i, (2, 3)), times=5)
    assert send(store, sites, "site-5", "june", flipped(rows(7, (0, 1), 30), 0, 1), times=4)
    update_head(store, validation, "june", 2.0)
    (event,) = held_events(store)
    assert [upload[:2] for upload in event["uploads"]] == [["site-5", "june"]]
    assert "not left out" not in event["reason"]


def test_the_first_head_is_tested_too(store, sites):
    honest(store, sites, "may", (0, 1))
    assert send(store, sites, "site-5", "may", flipped(rows(7, (0, 1)), 0, 1), times=5)
    assert update_head(store, VALIDATION, "may", 2.0) == (b"", "")
    assert held_events(store)[0]["uploads"][0][:2] == ["site-5", "may"]


def test_without_a_margin_or_validation_rows_any_head_goes_into_service(store, sites):
    honest(store, sites, "may", (0, 1))
    first, _ = update_head(store, VALIDATION, "may", 2.0)
    assert send(store, sites, "site-5", "june", flipped(rows(7, (0, 1)), 0, 1), times=5)
    assert update_head(store, VALIDATION, "june", 2.0)[0] == first
    released, _ = update_head(store, VALIDATION, "june")
    assert released != first
    assert not (store.folder / "held.fedran").exists()
    assert store.database.fact("held") == ""
    assert send(store, sites, "site-5", "july", flipped(rows(8, (0, 1)), 0, 1), times=5)
    assert update_head(store, None, "july", 2.0)[0] not in (first, released)


def test_forgetting_the_upload_ends_the_hold_and_the_old_head_is_the_newest(store, sites):
    honest(store, sites, "may", (0, 1))
    first, digest = update_head(store, VALIDATION, "may", 2.0)
    assert send(store, sites, "site-5", "june", flipped(rows(7, (0, 1)), 0, 1), times=5)
    update_head(store, VALIDATION, "june", 2.0)
    store.forget("site-5", "june", "me", SiteKey.generate())
    assert update_head(store, VALIDATION, "forget") == (first, digest)
    assert store.database.fact("held") == ""
    assert not (store.folder / "held.fedran").exists()


def test_the_margin_is_a_setting(store, sites):
    honest(store, sites, "may", (0, 1))
    update_head(store, VALIDATION, "may", 2.0)
    assert send(store, sites, "site-5", "june", flipped(rows(7, (0, 1)), 0, 1), times=5)
    blob, digest = update_head(store, VALIDATION, "june", 100.0)
    assert store.database.fact("held") == ""
    assert update_head(store, VALIDATION, "june", 2.0) == (blob, digest)


@pytest.mark.parametrize(("wrong", "falls"), [(2, 0), (3, 1)])
def test_fewer_than_three_validation_rows_never_decide(wrong, falls):
    before = {"a": Count(6, 6, 6), "b": Count(4, 4, 4)}
    after = {"a": Count(6, 6 - wrong, 6 - wrong), "b": Count(4, 4, 4)}
    for fair in (False, True):
        assert len(gate._falls({"may": ["a", "b"]}, before, after, 2.0, fair=fair)) == falls
