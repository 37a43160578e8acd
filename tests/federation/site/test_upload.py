"""From rows to an upload: budget, rare classes, missing labels, images."""

import logging
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.backbones.backbone import Backbone
from fedran.backbones.preprocessing import Preprocessing
from fedran.core.errors import Refused
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.store.store import Store
from helpers.federation.made_federation import SETTINGS
from helpers.federation.made_site import OFFER, rows, site_of, summary_of


def test_a_head_from_an_upload_classifies_its_rows(tmp_path):
    X, y = rows()
    site = site_of(tmp_path, X, y)
    store = Store(tmp_path / "server", SETTINGS, Roster({"site-1": site.key.public}))
    receipt = store.receive(site.prepare(OFFER))
    assert receipt.outcome == "accepted"
    site.outbox.settle(receipt)
    assert site.outbox.pending() == []
    assert np.mean(store.solve().predict(OFFER.features()(X)) == y) > 0.9
    store.close()


def test_rare_classes_are_withheld_with_a_warning(tmp_path, caplog):
    X, y = rows(60, classes=2)
    y = ["rare" if i < 3 else str(v) for i, v in enumerate(y)]
    with caplog.at_level(logging.WARNING):
        summary = summary_of(site_of(tmp_path, X, y).prepare(OFFER))
    assert summary.classes == ("0", "1")
    assert summary.accounts.n_rows == 57
    assert "withheld 'rare' (3)" in caplog.text
    site = site_of(tmp_path / "rare", X[:8], ["a", "b", "c", "d"] * 2)
    with pytest.raises(Refused, match="a class with at least 5 labelled rows"):
        site.prepare(OFFER)
    assert site.outbox.pending() == []


def test_missing_labels_are_filled_in_or_left_out(tmp_path, caplog):
    X, y = rows(90)
    half = [v if i % 2 else None for i, v in enumerate(y)]
    filled = summary_of(site_of(tmp_path / "a", X, half).prepare(OFFER))
    plain = summary_of(site_of(tmp_path / "b", X, half, pseudo_labels="none").prepare(OFFER))
    assert plain.accounts.n_rows == 45
    assert filled.accounts.n_rows > 60
    given = filled.accounts.n_rows - 45
    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert f"45 of 90 rows have no label; {given} of them get" in told[0]
    assert "left out" in told[1]


@pytest.mark.parametrize("work_bytes", [2**31, 2**22])
def test_negative_features_under_hellinger_are_refused_with_the_reason(tmp_path, work_bytes):
    X, y = rows(90)
    offer = replace(OFFER, kind="hellinger")
    accepted = site_of(tmp_path / "a", X, y, work_bytes=work_bytes).prepare(offer)
    assert summary_of(accepted).fingerprint == offer.features().fingerprint
    assert summary_of(accepted).fingerprint.fields["kind"] == "hellinger"
    X[77, 1] = -0.625
    site = site_of(tmp_path / "b", X, y, work_bytes=work_bytes)
    with pytest.raises(Refused, match="declares features that are never negative") as refusal:
        site.prepare(offer)
    assert "kind = 'cosine' at the server" in str(refusal.value)
    assert "0.625" not in str(refusal.value)  # the server sees no value
    assert site.outbox.pending() == []


def toy_backbone(**changes):
    """The mean colour, twice."""
    fields = {
        "name": "toy",
        "kind": "toy",
        "out_features": 6,
        "weights": "0" * 64,
        "preprocess": Preprocessing((4, 4), mean=(0, 0, 0), std=(255, 255, 255)),
        "forward": lambda x: np.tile(x.mean(axis=(2, 3)), 2),
    }
    return Backbone(**(fields | changes))


def images(n=30):
    y = np.arange(n) % 3
    bright = np.full((n, 4, 4, 3), 40) + 150 * np.eye(3)[y][:, None, None]
    return bright.astype(np.uint8), y.tolist()


def test_images_go_through_the_backbone_in_batches(tmp_path):
    sizes, pictures = [], images()

    def forward(x):
        sizes.append(len(x))
        return np.tile(x.mean(axis=(2, 3)), 2)

    network = toy_backbone(forward=forward)
    offer = replace(OFFER, source=network.source)
    site = site_of(tmp_path, *pictures, backbone=lambda: network)
    summary = summary_of(site.prepare(offer))
    assert sizes == [4] * 7 + [2]
    Z = np.tile(pictures[0].mean(axis=(1, 2)) / 255, 2)
    expected = fedran.summarize(
        offer.features()(Z), pictures[1], rank=8, fingerprint=offer.features().fingerprint
    )
    assert summary.accounts.energy == pytest.approx(expected.accounts.energy, rel=1e-5)
    assert summary.fingerprint == expected.fingerprint


def test_images_need_the_backbone_that_the_server_names(tmp_path):
    with pytest.raises(Refused, match="this site has no backbone"):
        site_of(tmp_path, *images()).prepare(OFFER)
    site = site_of(tmp_path, *images(), backbone=toy_backbone)
    with pytest.raises(Refused, match="backbone 'toy' at the site and 'test' at the server"):
        site.prepare(OFFER)
    assert site.outbox.pending() == []


def test_an_offer_for_features_of_another_source_is_refused(tmp_path):
    site = site_of(tmp_path, *rows(), made_by={"backbone": "test", "weights": "ab"})
    with pytest.raises(Refused, match="weights 'ab' at the site and 'absent' at the server"):
        site.prepare(OFFER)
    site.prepare(replace(OFFER, source={"weights": "ab", "backbone": "test"}))
    site_of(tmp_path / "b", *rows(), made_by="test").prepare(
        replace(OFFER, source={"backbone": "test"})
    )


def test_a_site_limits_rank_bytes_and_width_by_its_own_settings(tmp_path):
    X, y = rows()
    generous = replace(OFFER, budget_bytes=2**30)
    free = summary_of(site_of(tmp_path / "free", X, y).prepare(generous))
    tight = site_of(tmp_path / "tight", X, y).prepare(replace(OFFER, budget_bytes=2000))
    assert len(open_envelope(tight).upload) <= 2000
    assert summary_of(tight).rank < 30 < free.rank
    half = summary_of(site_of(tmp_path / "half", X, y, max_rank_share=0.25).prepare(generous))
    assert half.rank == 15
    small = site_of(tmp_path / "small", X, y, max_upload=4000).prepare(generous)
    assert len(open_envelope(small).upload) <= 4000
    narrow = site_of(tmp_path / "narrow", X, y, max_out_features=40)
    with pytest.raises(Refused, match="out_features: expected at most 40, the site's"):
        narrow.prepare(generous)
