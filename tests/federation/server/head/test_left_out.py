"""What all other sites say about each site is known after every new head; unchanged ones stay."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.server.head.head import LEFT_OUT, update_head
from helpers.federation.gated import flipped, gated_sites, honest, rows, send, store_of
from helpers.federation.made_federation import SUMMARIES, summary


@pytest.fixture(scope="module")
def sites():
    return gated_sites()


@pytest.fixture
def store(sites, tmp_path):
    found = store_of(sites, tmp_path / "state")
    yield found
    found.close()


def said(store):
    return json.loads(store.database.fact(LEFT_OUT))


def test_the_other_sites_contradict_the_one_that_lies(store, sites):
    honest(store, sites, "may", (0, 1, 2))
    assert send(store, sites, "site-5", "may", flipped(rows(7, (0, 1)), 0, 1))
    blob, digest = update_head(store, None, "may", 2.0)
    found, head = said(store), fedran.decode(blob)
    assert (found["head"], found["agreement"]) == (digest, head.diagnosis.agreement)
    assert found["largest_group"] == head.diagnosis.largest_group > 1
    exact = store.aggregator.what_others_say(head.diagnosis.lam)
    assert found["sites"] == {c: [[k, *n] for k, n in of.items()] for c, of in exact.items()}
    shares = {
        client: sum(right for *_, right in of) / sum(n for _, n, _ in of)
        for client, of in found["sites"].items()
    }
    assert shares.pop("site-5") < 0.2
    assert min(shares.values()) > 0.6


def test_a_class_that_one_site_alone_has_is_not_compared(store, sites):
    honest(store, sites, "may", (0, 1))
    assert send(store, sites, "site-5", "may", rows(7, (4,)))
    update_head(store, None, "may")
    assert said(store)["sites"]["site-5"] == []


def test_summaries_are_not_left_out(sites, tmp_path):
    store = sites.store(tmp_path / "sums", **SUMMARIES)
    store.receive(sites.envelope("site-1", "may", summary(1)))
    update_head(store, None, "may")
    assert said(store) == {}
    store.close()


def test_nothing_is_solved_again_until_something_changes(store, sites, monkeypatch, tmp_path):
    honest(store, sites, "may", (0, 1))
    first = update_head(store, None, "may", 2.0)
    solved, solve = [], type(store).solve
    monkeypatch.setattr(type(store), "solve", lambda s: solved.append(1) or solve(s))
    assert update_head(store, None, "", 2.0) == first
    assert update_head(store, None, "forget") == first
    assert solved == []
    assert send(store, sites, "site-5", "may", rows(50, (0, 1)))
    second = update_head(store, None, "may", 2.0)
    assert (second != first, len(solved)) == (True, 1)
    store.forget("site-5", None, "me", SiteKey.generate())
    assert update_head(store, None, "forget") == first, "bit for bit as before"
    store.settings = replace(store.settings, landmarks=3)
    assert len(fedran.decode(update_head(store, None, "may")[0]).landmarks) <= 3
    assert len(solved) == 3
    (store.folder / "head.fedran").write_bytes(b"damaged")
    update_head(store, None, "may")
    assert len(solved) == 4
