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
from helpers.federation.made_site import OFFER, message_of, rows, site_of


def test_a_head_from_an_upload_classifies_its_rows(tmp_path):
    X, y = rows(300)
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
        points = message_of(site_of(tmp_path, X, y).prepare(OFFER))
    assert points.classes == ("0", "1")
    assert points.n_rows == 57
    assert "withheld 'rare' (3)" in caplog.text
    site = site_of(tmp_path / "rare", X[:8], ["a", "b", "c", "d"] * 2)
    with pytest.raises(Refused, match="a class with at least 5 labelled rows"):
        site.prepare(OFFER)
    assert site.outbox.pending() == []


def test_missing_labels_are_filled_in_or_left_out(tmp_path, caplog):
    X, y = rows(90)
    half = [v if i % 2 else None for i, v in enumerate(y)]
    filled = message_of(site_of(tmp_path / "a", X, half).prepare(OFFER))
    plain = message_of(site_of(tmp_path / "b", X, half, pseudo_labels="none").prepare(OFFER))
    assert plain.n_rows == 45
    assert filled.n_rows > 60
    given = filled.n_rows - 45
    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert f"45 of 90 rows have no label; {given} of them get" in told[0]
    assert "left out" in told[1]


def test_negative_features_under_hellinger_are_refused_with_the_reason(tmp_path):
    X, y = rows(90)
    offer = replace(OFFER, kind="hellinger")
    accepted = site_of(tmp_path / "a", X, y).prepare(offer)
    assert message_of(accepted).fingerprint == offer.fingerprint
    assert message_of(accepted).fingerprint.fields["kind"] == "hellinger"
    X[77, 1] = -0.625
    site = site_of(tmp_path / "b", X, y)
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
    return (bright + np.random.default_rng(0).integers(60, size=(n, 1, 1, 3))).astype(
        np.uint8
    ), y.tolist()


def test_images_go_through_the_backbone_in_batches(tmp_path):
    sizes, pictures = [], images()

    def forward(x):
        sizes.append(len(x))
        return np.tile(x.mean(axis=(2, 3)), 2)

    network = toy_backbone(forward=forward)
    offer = replace(OFFER, source=network.source)
    site = site_of(tmp_path, *pictures, backbone=lambda: network)
    points = message_of(site.prepare(offer))
    assert sizes == [4] * 7 + [2]
    rows = offer.features()(np.tile(pictures[0].mean(axis=(1, 2)) / 255, 2))
    expected = fedran.condense(rows, pictures[1], 5, 5, offer.fingerprint)
    np.testing.assert_allclose(points.means, expected.means, atol=0.1)
    assert points.fingerprint == expected.fingerprint


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


def test_groups_are_the_smallest_that_the_budget_and_both_sides_allow(tmp_path, caplog):
    X, y = rows(900)

    def made(name, group_size=1, min_group=1, budget=2**20, **settings):
        offer = replace(OFFER, group_size=group_size, min_group=min_group, budget_bytes=budget)
        blob = site_of(tmp_path / name, X, y, hold_out=0, **settings).prepare(offer)
        points = message_of(blob)
        assert points.n_rows == 900
        assert points.smallest_group >= max(min_group, settings.get("min_class_count", 5))
        return points, len(open_envelope(blob).upload)

    single, size = made("single", min_class_count=1)
    assert len(single.counts) == 900
    fives, _ = made("fives", 5, 5)
    assert 50 < len(fives.counts) < 180
    assert len(made("site", min_class_count=20)[0].counts) < len(fives.counts)
    assert len(made("server", min_group=20)[0].counts) < len(fives.counts)
    with caplog.at_level(logging.INFO):
        tight, found = made("tight", budget=size // 2, min_class_count=1)
    assert found <= size // 2
    assert 90 < len(tight.counts) < 900
    assert "to fit the budget" in caplog.text
    names = [f"{c}{'x' * 250}" for c in y]
    with pytest.raises(Refused, match="room for 3 points"):
        site_of(tmp_path / "full", X, names).prepare(replace(OFFER, budget_bytes=1024))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.2])
def test_held_out_rows_are_in_no_upload_whatever_the_order_of_the_rows(share, tmp_path):
    X, y = rows(300)
    y = [9 if i < 6 else c for i, c in enumerate(y)]
    y[10:100:2] = [None] * 45  # pseudo-labels are not held out
    offer = replace(OFFER, group_size=1, min_group=1, budget_bytes=10**6)
    order = np.random.default_rng(1).permutation(300)
    found = []
    for name, chosen in (("a", np.arange(300)), ("b", order)):
        site = site_of(
            tmp_path / name, X[chosen], [y[i] for i in chosen],
            min_class_count=1, hold_out=share, pseudo_labels="none",
        )  # fmt: skip
        site.prepare(offer)
        (held,) = map(fedran.decode, site.outbox.held_out()) if share else (None,)
        found.append((message_of(site.outbox.envelope("may")), held))
    (sent, held), (again, held_again) = found
    assert sent.rows_per_class() == again.rows_per_class()
    if not share:
        assert sent.n_rows == 255
        return
    labelled = {c: y.count(c) for c in (0, 1, 2, 9)}
    expected = {c: int(share * n + 1e-9) for c, n in labelled.items() if share * n >= 2}
    assert held.rows_per_class() == held_again.rows_per_class() == expected
    assert 9 not in expected
    assert sent.n_rows + held.n_rows == 255
    as_rows = {tuple(row) for row in np.round(held.means, 1)}
    assert as_rows == {tuple(row) for row in np.round(held_again.means, 1)}
    nearest = np.min(np.linalg.norm(sent.means[:, None] - held.means[None], axis=2), axis=0)
    prepared = offer.features()(X)
    exact = np.linalg.norm(prepared[:, None] - held.means[None], axis=2)
    assert (np.min(exact, axis=0) < np.min(nearest)).all()
