"""`fedran federation forward` in a site's folder."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

from fedran.cli.federation.edge import forward as command
from fedran.federation.edge import edge as module
from fedran.federation.edge.folder import answer_requests
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.lockfile import AlreadyRunning, locked
from fedran.federation.protocol.messages import Offer, open_envelope
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.answers import not_here
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import SitePaths
from helpers.made_edge import MEMBERS, outcomes, uploads
from helpers.made_federation import M


@pytest.fixture
def site_folder(sites, tmp_path):
    """A site's folder as `fedran federation forward` finds it."""
    folder = tmp_path / "hospital"
    (folder / "inbox").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "site.toml").write_text(
        'federation = "trial"\nclient = "edge"\nfolder = "data"\nkey = "site.key"\n'
    )
    sites.keys["edge"].save(folder / "site.key")
    Roster({m: sites.keys[m].public for m in MEMBERS}).save(folder / "members.toml")
    return folder


def test_forward_sums_new_uploads_and_reports_files(sites, site_folder, server, tmp_path, capsys):
    first, second, third = uploads(sites, "site-1", "site-2", "site-3")
    (site_folder / "inbox" / "one.envelope").write_bytes(first)
    (site_folder / "inbox" / "bad.envelope").write_bytes(b"nonsense")
    (tmp_path / "two").write_bytes(second)
    command(site_folder, "may", [tmp_path / "two"])
    said = capsys.readouterr().out
    assert "two: accepted (site-2, may)" in said
    assert "one.envelope: accepted (site-1, may)" in said
    assert "bad.envelope: refused (?, ?): message: expected" in said
    assert "may.sum-1: the sum of site-2, site-1" in said
    outbox = Outbox(site_folder / "state" / "outbox")
    assert server.receive(outbox.envelope("may.sum-1")).outcome == "accepted"
    command(site_folder, "may", None)
    said = capsys.readouterr().out
    assert "one.envelope: duplicate" in said
    assert "nothing new to forward for may" in said
    (site_folder / "inbox" / "three.envelope").write_bytes(third)
    command(site_folder, "may", None, budget="2KB")
    assert "may.sum-2: the sum of site-3" in capsys.readouterr().out
    assert len(open_envelope(outbox.envelope("may.sum-2")).upload) <= 2000
    outbox.settle(Receipt(Code.CONFLICT, "edge", "may.sum-2", "d", "members: expected others"))
    command(site_folder, "may", None)
    assert "may.sum-2: the server refused it: members: expected others" in capsys.readouterr().out


def test_forward_refuses_uploads_for_other_features_than_the_last_offer(sites, site_folder, capsys):
    offer = Offer("trial", "may", 6, M, "relu", 9, "test", 20_000)
    (site_folder / "state").mkdir()
    (site_folder / "state" / "offer.json").write_text(json.dumps(offer.fields()))
    (site_folder / "inbox" / "one.envelope").write_bytes(*uploads(sites, "site-1"))
    command(site_folder, "may", None)
    assert "seed is 9 here and 0 there" in capsys.readouterr().out


def test_forward_waits_for_the_lock_of_the_outbox(sites, site_folder):
    settings = site_folder / "site.toml"
    settings.write_text(settings.read_text() + "seconds = 1\n")
    with (
        locked(site_folder / "state" / "outbox"),
        pytest.raises(AlreadyRunning, match="in use by process"),
    ):
        command(site_folder, "may", None)
    command(site_folder, "may", None)


def test_forward_does_not_replace_the_sites_own_upload(sites, site_folder, server, capsys):
    outbox = Outbox(site_folder / "state" / "outbox")
    own = outbox.put(open_envelope(sites.envelope("edge", "may")))
    (site_folder / "inbox" / "one.envelope").write_bytes(*uploads(sites, "site-1"))
    command(site_folder, "may", None, without=["site-1"])
    assert "nothing new" in capsys.readouterr().out
    command(site_folder, "may", None)
    assert "may.sum-1: the sum of site-1" in capsys.readouterr().out
    assert outbox.envelope("may") == own
    assert outcomes(server, own, outbox.envelope("may.sum-1")) == ["accepted"] * 2


def test_forward_does_not_read_a_file_that_is_too_large(sites, site_folder, capsys, monkeypatch):
    small = replace(module.DEFAULT_LIMITS, message=10)
    monkeypatch.setattr("fedran.federation.edge.folder.DEFAULT_LIMITS", small)
    (site_folder / "inbox" / "one.envelope").write_bytes(*uploads(sites, "site-1"))
    command(site_folder, "may", None)
    assert "refused: larger than 10 B" in capsys.readouterr().out


def test_a_running_edge_answers_the_servers_request_for_a_revised_sum(
    sites, site_folder, server, capsys
):
    paths, said = SitePaths(site_folder), []
    answer_requests(paths, said.append)
    for name, blob in zip(("one", "two"), uploads(sites, "site-1", "site-2"), strict=True):
        (site_folder / "inbox" / f"{name}.envelope").write_bytes(blob)
    command(site_folder, "may", None)
    outbox = Outbox(site_folder / "state" / "outbox")
    outbox.settle(server.receive(outbox.envelope("may.sum-1")))
    answer_requests(paths, said.append)
    assert said == []
    server.forget("site-2", "may", "me", SiteKey.generate())
    for receipt in not_here(server, "edge", outbox.settled()):
        outbox.settle(receipt)
    for _ in range(2):
        answer_requests(paths, said.append)
    assert len(said) == 1
    assert "may.sum-1: the sum of site-1" in said[0]
    assert server.receive(outbox.envelope("may.sum-1")).code == Code.ACCEPTED
    command(site_folder, "may", None)
    assert "two.envelope: refused (site-2, may)" in capsys.readouterr().out
