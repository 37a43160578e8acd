"""Rounds with secure sums, in memory: sites with folders, a server with a store."""

import numpy as np
import pytest

pytest.importorskip("flwr")

import fedran
from fedran.federation.protocol.messages import open_envelope
from helpers.secure_federation import SecureFederation


@pytest.fixture
def federation(tmp_path, monkeypatch, short_waits):
    return SecureFederation(tmp_path, monkeypatch)


def summaries(store):
    """Key, members and summary of every accepted upload."""
    found = []
    for upload in store.database.uploads():
        envelope = open_envelope(store.database.envelope(upload))
        found.append((upload.key, upload.members, fedran.decode(envelope.upload)))
    return found


def test_three_sites_give_one_sum_that_equals_that_of_all_rows(federation):
    assert federation.run("may") == "complete"
    with federation.store() as store:
        ((key, members, found),) = summaries(store)
    assert key == ("cohort-1", "may.sum-1")
    assert members == tuple((name, "may") for name in federation.names)
    exact = federation.exact("may")
    assert (found.classes, found.counts) == (exact.classes, exact.counts)
    assert np.linalg.norm(found.gram() - exact.gram(), 2) <= found.accounts.eps_G < 1
    for name in federation.names:
        assert (federation.state(name) / "head.fedran").is_file()
        assert [task for task, _ in federation.files(name).settled()] == ["may"]
