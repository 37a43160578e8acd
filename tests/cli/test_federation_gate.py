"""``fedran federation accept`` and ``rollback`` on a server with a site that lies."""

import pytest

pytest.importorskip("flwr")

from fedran.federation.server.head.head import update_head
from helpers.federation.gated import flipped, gated_sites, rows, send, store_of
from helpers.federation.made_federation import D


@pytest.fixture
def server(tmp_path):
    """The folder of a server that has set a site aside."""
    sites = gated_sites()
    settings = f'federation = "trial"\nin_features = {D}\nsource = "test"\n'
    (tmp_path / "server.toml").write_text(settings)
    sites.roster.save(tmp_path / "roster.toml")
    store = store_of(sites, tmp_path / "state")
    for i in range(1, 6):
        given = rows(10 * i, (0, 1), 200)
        given = flipped(given, 0, 1) if i == 5 else given
        assert send(store, sites, f"site-{i}", "may", given)
    update_head(store, None, "may")
    store.close()
    return tmp_path


def test_a_site_that_is_set_aside_is_shown_with_the_commands_that_decide(server, cli):
    code, out, _ = cli("federation", "status", str(server))
    assert (code, "site-5, set aside: the other sites" in " ".join(out.split())) == (0, True)
    without = (server / "state" / "head.fedran").read_bytes()
    code, out, _ = cli("federation", "accept", str(server), "site-5")
    assert (code, "site-5 counts" in out) == (0, True)
    assert (server / "state" / "head.fedran").read_bytes() != without
    assert "set aside" not in cli("federation", "status", str(server))[1]
    code, out, _ = cli("federation", "accept", str(server), "site-5", "--withdraw")
    assert (server / "state" / "head.fedran").read_bytes() == without
    assert cli("federation", "forget", str(server), "site-5", "--yes")[0] == 0
    assert (server / "state" / "head.fedran").read_bytes() == without


def test_only_a_rollback_can_be_released(server, cli):
    code, _, err = cli("federation", "rollback", str(server), "--release")
    assert (code, "expected a head that was rolled back" in err) == (2, True)
