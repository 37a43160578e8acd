"""Heads that a site's Flower app keeps, refuses and validates."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

import fedran
from fedran.federation.flower.records import make_record
from fedran.federation.protocol.messages import open_envelope
from fedran.wire.validation import Header
from helpers.federation.site_app import (
    PHI,
    Place,
    answer_offer,
    asked,
    call,
    receive_results,
    validate_heads,
)


def head_for(phi=PHI, seed=0):
    X, y = Place.rows(seed)
    server = fedran.Aggregator(fingerprint=phi.fingerprint)
    server.absorb(fedran.condense(phi(X), y, fingerprint=phi.fingerprint), client="a", task="t")
    return fedran.encode(server.solve())


def test_the_newest_head_is_kept_and_its_digest_reported(place):
    call(answer_offer, asked())
    for seed in (0, 1):
        blob = head_for(seed=seed)
        fields, _ = call(receive_results, make_record({}, {"head": blob}))
        assert fields["head"] == hashlib.sha256(blob).hexdigest()
        assert place.head.read_bytes() == blob
    assert call(answer_offer, asked())[0]["head"] == fields["head"]


def test_a_wrong_head_leaves_the_old_one(place, caplog):
    call(answer_offer, asked())
    good = head_for()
    call(receive_results, make_record({}, {"head": good}))
    other = fedran.KernelFeatures(6, source="another")
    points = open_envelope(place.outbox.envelope("may")).upload
    for bad, words in (
        (good[:-5], "message: expected"),
        (b"\0", "message: expected"),
        (head_for(other), "fingerprint: expected site and head to mean the same features"),
        (points, "kind: expected head"),
    ):
        fields, _ = call(receive_results, make_record({}, {"head": bad}))
        assert words in fields["told"]
        assert words in caplog.text
        assert fields["head"] == hashlib.sha256(good).hexdigest()
        assert place.head.read_bytes() == good


def test_a_site_without_an_offer_accepts_its_first_head(place):
    assert call(receive_results, make_record({}, {"head": head_for()}))[0]["told"] == ""
    call(answer_offer, asked(kind="hellinger"))
    assert "fingerprint" in call(receive_results, make_record({}, {"head": head_for()}))[0]["told"]


def heads_of(place, *tasks):
    """Encoded heads over the rows of each task."""
    found = {}
    for task in tasks:
        with np.load(place.folder / "data" / f"{task}.npz") as file:
            agg = fedran.Aggregator(fingerprint=PHI.fingerprint)
            points = fedran.condense(
                PHI(file["features"]), file["labels"], fingerprint=PHI.fingerprint
            )
            agg.absorb(points, client="a", task=task)
        found[task] = fedran.encode(agg.solve())
    return found


def test_a_site_counts_on_rows_that_it_held_out_of_its_uploads(place):
    """They are tested by any head, and are not read from the rows of the task again."""
    rng = np.random.default_rng(4)
    for task in ("may", "june"):
        y = np.arange(300) % 3
        X = rng.random((300, 6)) + np.eye(6)[y]
        np.savez(place.folder / "data" / f"{task}.npz", features=X, labels=y)
    heads = heads_of(place, "may", "june")
    assert sorted(call(answer_offer, asked())[0]["validated"]) == [0, 1, 2]
    call(answer_offer, asked("june"))
    for path in (place.folder / "data").iterdir():
        path.unlink()
    held = [fedran.decode(blob) for blob in place.outbox.held_out()]
    assert [points.rows_per_class() for points in held] == [{0: 5, 1: 5, 2: 5}] * 2
    said = {"heads": list(heads), "first": "may"}
    fields, _ = call(validate_heads, make_record(said, heads))
    for name, blob in heads.items():
        head = fedran.decode(blob)
        right = sum(
            np.bincount(p.codes[head.predict(p.means) == p.codes], minlength=3) for p in held
        )
        told = [line[:3] for line in fields["counts"][name]]
        assert told == [[c, 10, right[c]] for c in range(3)]
        told = Header(fields["histograms"]).calibration(name)
        head = replace(head, calibration=None)
        for p in held:
            head = head.calibrate(p.means, p.codes)
        np.testing.assert_allclose(told.losses, head.calibration.losses)
        np.testing.assert_array_equal(told.histogram, head.calibration.histogram)
    place.file.write_text(place.file.read_text() + "hold_out = 0\n")
    assert "validated" not in call(answer_offer, asked())[0]


@pytest.mark.parametrize(
    "said", [{"earlier": 3, "tested": []}, {"earlier": [], "tested": [[1]]}, None]
)
def test_a_request_for_counts_that_makes_no_sense_is_refused(place, said):
    place.file.write_text(place.file.read_text() + "hold_out = 0.2\n")
    call(answer_offer, asked())
    heads = heads_of(place, "may")
    if said is None:
        said, heads = {"earlier": [], "tested": []}, {str(i): heads["may"] for i in range(10)}
    fields, _ = call(validate_heads, make_record(said, heads))
    assert "counts" not in fields
    assert fields["failed"]
