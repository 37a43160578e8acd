"""Which uploads of members an edge accepts."""

import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.core.errors import Refused
from fedran.federation.edge.edge import Edge
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.roster import Roster
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import SiteSettings
from helpers.made_edge import outcomes, uploads
from helpers.made_federation import Sites, full_disk, upload
from helpers.made_site import OFFER

REFUSED = [
    ("wrong key", {"key": "other"}, "signature: expected a signature by the key of site-1"),
    ("another federation", {"federation": "elsewhere"}, "federation: expected trial"),
    ("a fingerprint that is not the summary's", {"fingerprint": "0" * 64}, "as signed"),
    ("damaged", {"data": b"nonsense"}, "expected a fedran file"),
]


@pytest.mark.parametrize(("_", "changes", "words"), REFUSED, ids=[r[0] for r in REFUSED])
def test_an_upload_refused_by_an_edge_leaves_no_trace(_, changes, words, sites, opened):
    edge = opened()
    before = edge.database.count()
    if "key" in changes:
        changes = {"key": SiteKey.generate()}
    receipt = edge.receive(sites.envelope("site-1", "may", **changes))
    assert (receipt.outcome, receipt.client) == ("refused", "site-1")
    assert words in receipt.reason
    assert edge.database.count() == before
    assert edge.forward("may") is None
    assert edge.receive(sites.envelope("site-1", "may")).outcome == "accepted"


def test_strangers_garbage_and_the_edge_itself_are_refused(sites, opened):
    edge = opened()
    assert outcomes(edge, b"", b"x" * 100) == ["refused"] * 2
    stranger = edge.receive(Sites("site-9").envelope("site-9", "may"))
    assert "a site of the roster" in stranger.reason
    assert "edge's own outbox" in edge.receive(sites.envelope("edge", "may")).reason
    circle = sites.envelope("inner", "may", members=(("edge", "may"),))
    assert "the edge itself" in edge.receive(circle).reason


def test_an_edge_counts_duplicates_once_and_refuses_conflicts(sites, opened):
    edge = opened()
    blob = sites.envelope("site-1", "may", upload(1))
    assert outcomes(edge, blob, blob) == ["accepted", "duplicate"]
    conflict = edge.receive(sites.envelope("site-1", "may", upload(2)))
    assert (conflict.outcome, "already accepted" in conflict.reason) == ("refused", True)
    edge.forward("may")
    assert outcomes(opened(), blob) == ["duplicate"]
    assert opened().forward("may") is None


def test_an_edge_refuses_uploads_of_another_feature_map(sites, opened):
    other = fedran.RandomFeatures(6, 40, "relu", seed=1, source="test")
    strange = sites.envelope(
        "site-2", "may", upload(1, phi=other), fingerprint=other.fingerprint.hash
    )
    edge = opened()
    edge.receive(*uploads(sites, "site-1"))
    assert "out_features: expected 48, got 40" in edge.receive(strange).reason
    assert "out_features" in opened().receive(strange).reason
    known = opened("inner", OFFER)
    assert "M is 48 here and 40 there" in known.receive(strange).reason
    opened("inner").receive(strange)
    with pytest.raises(Refused, match="M is 48 here and 40 there"):
        opened("inner", OFFER)


def test_a_member_speaks_for_others_only_where_the_edge_lists_them(sites, opened):
    edge = opened()
    sums = [("inner", "site-3"), ("site-1", "site-2")]
    for sender, member in sums:
        blob = sites.envelope(sender, "may.sum-1", members=((member, "may"),))
        receipt = edge.receive(blob)
        assert receipt.outcome == "refused"
        assert f"members that the roster lists for {sender}, got ['{member}']" in receipt.reason
        assert edge.receive(sites.envelope(member, "may")).outcome == "accepted"
    assert edge.forward("may").statement.members == (("site-3", "may"), ("site-2", "may"))


def test_an_edge_with_a_full_disk_accepts_nothing(sites, opened):
    edge, blob = opened(), sites.envelope("site-1", "may", upload(1, classes=range(99), n=99))
    with full_disk(edge.database), pytest.raises(OSError, match="disk is full"):
        edge.receive(blob)
    assert edge.forward("may") is None
    assert outcomes(edge, blob, blob) == ["accepted", "duplicate"]


@pytest.mark.parametrize(("task", "member"), [("may", "may"), ("may.sum-1", "june")])
def test_an_edge_refuses_a_sum_that_the_server_would_refuse(task, member, sites, tmp_path):
    members = Roster({"inner": sites.keys["inner"].public}, {"inner": ("site-1",)})
    outbox = Outbox(tmp_path / "outbox")
    settings = SiteSettings("trial", "edge", folder="data")
    edge = Edge(tmp_path / "edge", settings, sites.keys["edge"], members, outbox)
    blob = sites.envelope("inner", task, members=(("site-1", member),))
    assert edge.receive(blob).outcome == "refused"
    edge.close()
