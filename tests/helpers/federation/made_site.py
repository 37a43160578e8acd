"""A site in memory: rows of three classes, and the site that sends them."""

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.data.rows import Rows
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.messages import Offer, open_envelope
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import SiteSettings
from fedran.federation.site.upload import Site

OFFER = Offer("trial", "may", 6, "cosine", "test", 20_000, group_size=5, min_group=5)
SUM = Offer("trial", "may", 6, "cosine", "test", 20_000, out_features=48, privacy="secure")


def rows(n=60, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    return rng.random((n, 6)) + y[:, None] * np.eye(6)[:classes][y], y.tolist()


def site_of(
    tmp_path, X, y, key=None, source=None, backbone=None, work_bytes=2**31, made_by=None, **changes
):
    settings = SiteSettings("trial", "site-1", folder="data", source=made_by, **changes)
    rows = source or (lambda task: Rows(X, list(y)))
    outbox = Outbox(tmp_path / "outbox")
    return Site(settings, key or SiteKey.generate(), rows, outbox, backbone, work_bytes)


def message_of(blob):
    return fedran.decode(open_envelope(blob).upload)
