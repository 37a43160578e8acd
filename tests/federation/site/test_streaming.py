"""Rows whose random features do not fit into memory are summarized in batches."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.federation.site.pseudo_labels import with_pseudo_labels
from fedran.federation.site.upload import summarize_bytes
from helpers.federation.made_site import SUMMARY, rows, site_of

SMALL = 250_000
"""Bytes of work that hold fewer than 100 rows of 48 random features."""


def test_a_streamed_summary_equals_the_one_shot_summary_to_the_accounts(tmp_path):
    X, y = rows(900)
    whole = site_of(tmp_path / "a", X, y).summarize(SUMMARY)
    streamed = site_of(tmp_path / "b", X, y, work_bytes=SMALL).summarize(SUMMARY)
    assert streamed.route == "gram"
    assert (streamed.classes, streamed.counts) == (whole.classes, whole.counts)
    np.testing.assert_allclose(streamed.class_sums, whole.class_sums, rtol=1e-5)
    assert streamed.accounts.n_rows == whole.accounts.n_rows == 900
    assert streamed.accounts.energy == pytest.approx(whole.accounts.energy, rel=1e-6)
    grams = [s.factor.astype(np.float64) @ s.factor.T for s in (streamed, whole)]
    rounding = 1e-6 * whole.accounts.energy
    allowed = streamed.accounts.eps_G + whole.accounts.eps_G + rounding
    assert np.linalg.norm(grams[0] - grams[1], 2) <= allowed
    assert streamed.fingerprint == whole.fingerprint


def test_rows_that_fit_are_summarized_at_once_bit_for_bit(tmp_path):
    X, y = rows(90)
    phi = SUMMARY.features()
    found = site_of(tmp_path, X, y, work_bytes=summarize_bytes(90, 48)).summarize(SUMMARY)
    rank = min(fedran.plan(SUMMARY.budget_bytes, out_features=48, n_classes=3).rank, 48)
    plain = fedran.summarize(phi(X), y, rank=rank, fingerprint=phi.fingerprint)
    assert fedran.encode(found, "float32") == fedran.encode(plain, "float32")


def test_streamed_rows_get_pseudo_labels_that_agree_with_the_truth(tmp_path):
    X, y = rows(900)
    half = [v if i % 2 else None for i, v in enumerate(y)]
    site = site_of(tmp_path, X, half, work_bytes=SMALL)
    phi = SUMMARY.features()
    labels = with_pseudo_labels(lambda r: phi(X[r]), half, 80, "may")
    made = [(a, b) for a, b, c in zip(labels, y, half, strict=True) if c is None and a is not None]
    assert len(made) > 350
    assert sum(a != b for a, b in made) < 0.1 * len(made)
    assert site.summarize(SUMMARY).accounts.n_rows > 800


def test_streamed_images_go_through_the_backbone_batch_by_batch(tmp_path, monkeypatch):
    from fedran.federation.site import upload as module

    X, y = rows(600)
    sizes = []

    def extract(network, images):
        sizes.append(len(images))
        return X[: len(images)]

    monkeypatch.setattr(module, "extract", extract)
    network = type("Network", (), {"source": "test"})()
    pictures = np.zeros((600, 2, 2, 3), np.uint8)
    site_of(tmp_path, pictures, y, backbone=lambda: network, work_bytes=SMALL).summarize(SUMMARY)
    assert (max(sizes), sum(sizes)) == (module.BATCH_ROWS, 600)


def test_peak_memory_does_not_grow_with_random_features_of_all_rows(tmp_path):
    """Those of the added rows alone (3,000 x 256 float32, 3 MiB) need more than is added."""
    offer, peaks = replace(SUMMARY, out_features=256), []
    for n in (1_000, 4_000):
        site = site_of(tmp_path / str(n), *rows(n), work_bytes=2**23)
        tracemalloc.start()
        site.summarize(offer)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 3_000 * 200  # labels, codes and numbers of rows
