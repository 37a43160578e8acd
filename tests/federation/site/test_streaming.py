"""Rows that do not fit into memory are summarized in batches, under the site's memory limit."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.site.pseudo_labels import with_pseudo_labels
from fedran.federation.site.upload import summarize_bytes
from helpers.federation.made_site import OFFER, rows, site_of

SMALL = 250_000
"""Bytes of work that hold fewer than 100 rows of 48 random features."""


def test_a_streamed_summary_equals_the_one_shot_summary_to_the_accounts(tmp_path):
    X, y = rows(900)
    whole = site_of(tmp_path / "a", X, y).summarize(OFFER)
    streamed = site_of(tmp_path / "b", X, y, work_bytes=SMALL).summarize(OFFER)
    assert "compressions" in streamed.route
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
    phi = OFFER.features()
    found = site_of(tmp_path, X, y, work_bytes=summarize_bytes(90, 48)).summarize(OFFER)
    rank = min(fedran.plan(OFFER.budget_bytes, out_features=48, n_classes=3).rank, 48)
    plain = fedran.summarize(phi(X), y, rank=rank, fingerprint=phi.fingerprint)
    assert fedran.encode(found, "float32") == fedran.encode(plain, "float32")


def test_streamed_rows_get_pseudo_labels_that_agree_with_the_truth(tmp_path):
    X, y = rows(900)
    half = [v if i % 2 else None for i, v in enumerate(y)]
    site = site_of(tmp_path, X, half, work_bytes=SMALL)
    phi = OFFER.features()
    labels = with_pseudo_labels(lambda r: phi(X[r]), half, 80, "may")
    made = [(a, b) for a, b, c in zip(labels, y, half, strict=True) if c is None and a is not None]
    assert len(made) > 350
    assert sum(a != b for a, b in made) < 0.1 * len(made)
    assert site.summarize(OFFER).accounts.n_rows > 800


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
    site_of(tmp_path, pictures, y, backbone=lambda: network, work_bytes=SMALL).summarize(OFFER)
    assert (max(sizes), sum(sizes)) == (module.BATCH_ROWS, 600)


PROGRAM = """
import json, mmap, sys
from pathlib import Path
from fedran.federation.protocol.messages import Offer
from fedran.federation.protocol.configuration import load_settings
from fedran.federation.site.settings import SiteSettings
from fedran.federation.site.worker import limit_resources, work
path = Path(sys.argv[1])
reserved = mmap.mmap(-1, 2**30, mmap.MAP_PRIVATE)  # as OpenBLAS reserves it for 13 threads
limit_resources(load_settings(SiteSettings, path))
problems = work(path, Offer.read(json.loads(sys.argv[2])))
# Not ru_maxrss: a process inherits that from the process that started it.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([problems.text, int(peak.split()[1]) // 1024]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the federation runs on Linux")
def test_peak_memory_stays_below_the_limit_however_many_rows_there_are(tmp_path):
    """H alone (280,000 x 256 float32, 273 MiB) is larger than the limit."""
    peaks = []
    for n in (20_000, 280_000):
        folder = tmp_path / str(n)
        folder.mkdir()
        SiteKey.generate().save(folder / "site.key")
        (folder / "site.toml").write_text(
            'federation = "trial"\nclient = "site-1"\nfolder = "."\nmemory_mib = 256\n'
        )
        y = (np.arange(n) % 3).astype(np.int8)
        X = np.random.default_rng(0).random((n, 6), dtype=np.float32) + np.eye(6, dtype="f4")[y]
        np.savez(folder / "may.npz", features=X, labels=y)
        offer = replace(OFFER, out_features=256)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, folder / "site.toml", json.dumps(offer.fields())],
            capture_output=True,
            text=True,
            check=True,
        )
        problems, peak = json.loads(done.stdout)
        assert problems == ""
        peaks.append(peak)
    rows_mib = 260_000 * 60 / 2**20  # features, labels as Python objects and their codes
    assert peaks[1] < peaks[0] + 3 * rows_mib
    assert peaks[1] < 350  # resident memory includes code and libraries, the limit does not
