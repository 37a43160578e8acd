"""What a running site says about its connection."""

import json
import logging

import pytest

pytest.importorskip("cryptography")

from fedran.federation.ops import services
from fedran.federation.ops.scaffold import make_site
from fedran.federation.ops.services import Connection
from fedran.federation.protocol import keys
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.site.settings import SitePaths


@pytest.fixture
def paths(tmp_path):
    keys.make_certificates(tmp_path / "tls")
    site = tmp_path / "site"
    ca = tmp_path / "tls" / "ca.crt"
    make_site(site, federation="trial", client="site-1", server="fl.example.org:9444", ca=ca)
    return SitePaths(site)


def test_a_site_says_whether_it_is_connected_when_this_changes(paths, monkeypatch, caplog):
    reasons = [""] + ["nothing listens there"] * 2 + [""] * 5 + ["no answer"]
    monkeypatch.setattr(services, "why_unreachable", lambda *_: (reasons.pop(0), "a remedy"))
    connection = Connection(paths)
    with caplog.at_level(logging.INFO):
        for ended in ("", None, None, "not admitted", "not admitted", None, None, None, None):
            connection.next_check = 0.0
            connection.check(running=ended is None, why_ended=ended or "")
            connection.check(running=ended is None, why_ended=ended or "")  # too early
            if ended:
                assert connection.state.endswith("the SuperNode ended: not admitted")
    assert [r.message for r in caplog.records] == [
        "cannot reach fl.example.org:9444 (nothing listens there)",
        "connected to fl.example.org:9444",
        "cannot reach fl.example.org:9444 (no answer)",
    ]
    note = json.loads((paths.folder / "state" / "connection.json").read_text())
    assert note["state"] == "cannot reach fl.example.org:9444 (no answer)"
    assert note["connected"] is False


def test_a_site_makes_its_secret_only_while_it_holds_the_lock_of_its_folder(paths, monkeypatch):
    """A second start would otherwise replace the secret of a site that has just begun to run."""
    held = []

    def supernode(*_, **__):
        held.append(lock_holder(paths.folder / "log"))
        raise PermissionError("an error in the folder")

    monkeypatch.setattr(services.programs, "supernode", supernode)
    with pytest.raises(PermissionError):
        services.run_site(paths, say=print)
    assert held[0] is not None
