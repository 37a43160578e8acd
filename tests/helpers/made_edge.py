"""Members of an edge and their uploads."""

import pytest

pytest.importorskip("cryptography")

from helpers.made_federation import upload

MEMBERS = ("site-1", "site-2", "site-3", "inner")


def outcomes(receiver, *blobs):
    return [receiver.receive(b).outcome for b in blobs]


def uploads(sites, *members, task="may"):
    """Envelopes whose classes overlap: (0, 1), (1, 2), ..."""
    return [sites.envelope(m, task, upload(k, classes=(k, k + 1))) for k, m in enumerate(members)]


def waiting(edge, task):
    """Ids of the accepted uploads that were not forwarded yet."""
    return [envelope.statement.key for envelope in edge.not_forwarded(task)]
