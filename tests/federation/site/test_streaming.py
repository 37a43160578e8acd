"""Rows whose random features do not fit into memory are added up in batches."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from fedran.federation.protocol.limits import BATCH_ROWS
from fedran.federation.secure.masking.contribution import Content
from fedran.federation.secure.site.participant import make_contribution
from fedran.federation.site.pseudo_labels import with_pseudo_labels
from helpers.federation.made_site import SUM, rows, site_of

SMALL = 250_000
"""Bytes of work that hold fewer than 100 rows of 48 random features."""
CONTENT = Content((0, 1, 2), 0, 16, 3, 10_000)


def test_streamed_rows_get_pseudo_labels_that_agree_with_the_truth(tmp_path):
    X, y = rows(900)
    half = [v if i % 2 else None for i, v in enumerate(y)]
    phi = SUM.features()
    labels = with_pseudo_labels(lambda r: phi(X[r]), half, 80, "may")
    made = [(a, b) for a, b, c in zip(labels, y, half, strict=True) if c is None and a is not None]
    assert len(made) > 350
    assert sum(a != b for a, b in made) < 0.1 * len(made)


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
    site = site_of(tmp_path, pictures, y, backbone=lambda: network, work_bytes=SMALL)
    make_contribution(site, SUM, CONTENT)
    assert (max(sizes), sum(sizes)) == (BATCH_ROWS, 600)


def test_peak_memory_does_not_grow_with_random_features_of_all_rows(tmp_path):
    """Those of the added rows alone (3,000 x 256 float32, 3 MiB) need more than is added."""
    offer, peaks = replace(SUM, out_features=256), []
    for n in (1_000, 4_000):
        site = site_of(tmp_path / str(n), *rows(n), work_bytes=2**23)
        tracemalloc.start()
        make_contribution(site, offer, CONTENT)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 3_000 * 200  # labels, codes and numbers of rows
