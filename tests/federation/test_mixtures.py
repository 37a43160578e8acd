"""Federations of mixtures: sites and server."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.core.errors import Refused
from fedran.core.sums.exact_sum import ExactSum
from fedran.federation.protocol.messages import Offer, open_envelope
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.server.cohorts import task_before
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.store import Store
from helpers.federation.made_federation import PHI, SETTINGS, D, M, Sites, same_state, upload
from helpers.federation.made_site import OFFER, rows, site_of, summary_of

MIXTURES = replace(SETTINGS, message="mixture", snapshot_every=3)
INPUT = PHI.input_fingerprint


def mixture(seed, classes=(0, 1), n=20):
    rng = np.random.default_rng(seed)
    y = [classes[i % len(classes)] for i in range(n)]
    return fedran.encode(fedran.condense(rng.random((n, D)), y, PHI))


@pytest.fixture(scope="module")
def sites():
    return Sites("site-1", "site-2")


def envelope(sites, client, task="may", data=None):
    data = mixture(sum((client + task).encode())) if data is None else data
    return sites.envelope(client, task, data, fingerprint=INPUT.hash)


def test_an_offer_of_mixtures_is_read_back_and_others_are_refused():
    shared = {"kind": PHI.kind, "source": "test"}
    offer = ServerSettings("trial", D, M, **shared, message="mixture", group_size=4).offer("t")
    assert Offer.read(offer.fields()) == offer
    assert offer.fingerprint == INPUT
    assert replace(offer, out_features=99, seed=5).fingerprint == INPUT
    assert replace(offer, message="summary").fingerprint == PHI.fingerprint
    for change in ({"message": "picture"}, {"message": None}, {"group_size": 0}):
        with pytest.raises(Refused, match=next(iter(change))):
            Offer.read({**offer.fields(), **change})
    with pytest.raises(ValueError, match="message"):
        ServerSettings("trial", D, message="picture")


def test_a_site_sends_a_mixture_and_the_server_learns_from_it(tmp_path):
    X, y = rows(90)
    site = site_of(tmp_path, X, y)
    blob = site.prepare(replace(OFFER, message="mixture", group_size=3))
    found = summary_of(blob)
    assert isinstance(found, fedran.Mixture)
    assert found.smallest_group >= site.settings.min_class_count
    assert open_envelope(blob).statement.fingerprint == INPUT.hash
    store = Store(tmp_path / "server", MIXTURES, Roster({"site-1": site.key.public}))
    assert store.receive(blob).outcome == "accepted"
    assert np.mean(store.solve().predict(PHI(X)) == y) > 0.9
    store.close()


def test_groups_grow_until_the_upload_fits(tmp_path):
    X, y = rows(600)
    sizes = []
    for n, budget in enumerate((1_300, 3_000, 60_000)):
        site = site_of(tmp_path / str(n), X, y, min_class_count=2)
        offer = replace(OFFER, message="mixture", group_size=2, budget_bytes=budget)
        blob = site.prepare(offer)
        assert len(open_envelope(blob).upload) <= budget
        sizes.append(summary_of(blob).n_groups)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    site = site_of(tmp_path / "small", X, [str(i % 100) for i in range(600)])
    with pytest.raises(Refused, match="room for 100 group means"):
        site.prepare(replace(OFFER, message="mixture", budget_bytes=1024))


def test_rare_classes_are_withheld_and_missing_labels_guessed(tmp_path):
    X, y = rows(90)
    y = [None if i >= 60 else "rare" if i < 3 else str(v) for i, v in enumerate(y)]
    found = summary_of(site_of(tmp_path, X, y).prepare(replace(OFFER, message="mixture")))
    assert found.classes == ("0", "1", "2")
    assert found.n_rows > 60


def test_a_server_takes_only_the_kind_that_its_settings_name(sites, tmp_path):
    for settings, blob, right in (
        (MIXTURES, sites.envelope("site-1", "may", upload(0)), "fingerprint"),
        (SETTINGS, envelope(sites, "site-1"), "fingerprint"),
        (MIXTURES, envelope(sites, "site-1", data=upload(0)), "expected a mixture, got a summary"),
    ):
        store = Store(tmp_path / right / settings.message, settings, sites.roster)
        receipt = store.receive(blob)
        assert receipt.outcome == "refused"
        assert right in receipt.reason
        store.close()


def test_a_restart_replays_mixtures_bit_for_bit(sites, tmp_path):
    whole = sites.store(tmp_path / "whole", message="mixture")
    for n in range(5):
        blob = envelope(sites, "site-1", f"task-{n}", mixture(n, classes=(n, n + 1)))
        assert whole.receive(blob).outcome == "accepted"
        broken = sites.store(tmp_path / "broken", message="mixture")
        broken.receive(blob)
        broken.close()
    again = sites.store(tmp_path / "broken", message="mixture")
    assert same_state(again, whole)
    for store in (again, whole):
        store.close()


def test_nobody_waits_for_a_slow_lift(sites, tmp_path, monkeypatch):
    """While a mixture is lifted, it is on disk, and other processes read and write the database."""
    store, seen, lift = sites.store(tmp_path, message="mixture"), [], ExactSum.add_mixture

    def slow_lift(*arguments):
        with closing(Database(tmp_path)) as other:
            other.sql.execute("PRAGMA busy_timeout = 0")
            other.set_seen("site-2")
            seen.append([upload.key for upload in other.uploads()])
        lift(*arguments)

    monkeypatch.setattr(ExactSum, "add_mixture", slow_lift)
    for client in ("site-1", "site-2"):
        assert store.receive(envelope(sites, client)).outcome == "accepted"
    assert seen == [[("site-1", "may")], [("site-1", "may"), ("site-2", "may")]]
    assert list(store.database.seen()) == ["site-2"]
    store.close()


def forged_parts(data, parts):
    """The upload with its accounts, or its only mixture part, changed to this number of parts."""
    message = fedran.decode(data)
    if isinstance(message, fedran.Mixture):
        return fedran.encode(replace(message, parts=message.parts * parts))
    accounts = replace(message.accounts, parts=parts)
    return fedran.encode(replace(message, accounts=accounts, digest=None))


@pytest.mark.parametrize("kind", ["summary", "mixture"])
def test_a_site_cannot_say_that_it_is_several_sites(kind, sites, tmp_path):
    make, said = (upload, PHI.fingerprint) if kind == "summary" else (mixture, INPUT)
    lie = sites.envelope("site-1", "may", forged_parts(make(0), 2), fingerprint=said.hash)
    store = Store(tmp_path / "server", replace(SETTINGS, message=kind), sites.roster)
    assert "parts: expected 1" in store.receive(lie).reason
    store.close()


def test_a_server_of_mixtures_that_changes_to_secure_sums_begins_without_directions(tmp_path):
    """The sketch of a secure sum follows the task before, but a mixture has no directions."""
    phi, sites = fedran.RandomFeatures(D, M, "cosine", source="test"), Sites("site-1")
    data = fedran.encode(fedran.condense(np.eye(D)[[0, 1] * 10], [0, 1] * 10, phi))
    said = {"fingerprint": phi.input_fingerprint.hash}
    with closing(sites.store(tmp_path, kind="cosine", message="mixture")) as store:
        assert store.receive(sites.envelope("site-1", "may", data, **said)).outcome == "accepted"
        changed = {"message": "summary", "privacy": "secure", "classes": [0, 1], "sketch": 8}
        store.settings = replace(store.settings, **changed)
        assert task_before(store, "june") == b""
