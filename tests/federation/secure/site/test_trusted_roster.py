"""What people compare and agree to before a secure sum."""

import pytest

pytest.importorskip("flwr")

from fedran.core.errors import Refused
from fedran.federation.ops.scaffold import (
    make_federation,
    make_site,
)
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.site.pinning import PinnedRoster, roster_fingerprint, trust_roster
from fedran.federation.server.settings import ServerPaths
from fedran.federation.site.settings import SitePaths


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secure") / "t"
    make_federation(folder, n_sites=3, in_features=6, privacy="secure", classes=("cat", "dog"))
    return folder


def test_a_new_federation_on_one_machine_has_pinned_rosters(made):
    settings = ServerPaths(made / "server").settings()
    assert (settings.privacy, settings.classes, settings.min_clients) == (
        "secure",
        ["cat", "dog"],
        3,
    )
    clients = Roster.load(made / "server" / "roster.toml").clients
    sites = [SitePaths(made / "sites" / f"site-{i}") for i in (1, 2, 3)]
    assert [PinnedRoster(site.state).clients for site in sites] == [clients] * 3


def test_a_roster_is_pinned_only_with_its_fingerprint_and_with_this_site(made, tmp_path):
    site, file = SitePaths(made / "sites" / "site-1"), tmp_path / "roster.toml"
    before = PinnedRoster(site.state).clients
    other = {**before, "site-9": before["site-2"]}
    Roster(other).save(file)
    with pytest.raises(Refused, match="fingerprint"):
        trust_roster(site, roster_fingerprint(before), file)
    assert PinnedRoster(site.state).clients == before
    trust_roster(site, roster_fingerprint(other).replace(" ", "").upper(), file)
    assert PinnedRoster(site.state).clients == other
    alone = {"site-9": before["site-2"]}
    Roster(alone).save(file)
    with pytest.raises(Refused, match="one that lists this site"):
        trust_roster(site, roster_fingerprint(alone), file)


def test_a_new_site_has_no_roster_until_it_is_shown_one(made, tmp_path):
    make_site(
        tmp_path / "new",
        federation="trial",
        client="site-4",
        server="127.0.0.1:9443",
        ca=made / "server" / "tls" / "ca.crt",
        privacy="secure",
    )
    with pytest.raises(FileNotFoundError, match="--roster"):
        trust_roster(SitePaths(tmp_path / "new"), "x")


@pytest.mark.parametrize("n", [1, 2])
def test_a_federation_with_too_few_sites_for_a_sum_is_refused(tmp_path, n):
    with pytest.raises(ValueError, match="at least 3"):
        make_federation(tmp_path / "t", n_sites=n, privacy="secure")


def test_secure_sums_need_a_list_of_classes(tmp_path):
    with pytest.raises(ValueError, match="needs `classes`"):
        make_federation(tmp_path / "t", n_sites=3, in_features=6, privacy="secure")
