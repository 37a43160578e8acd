"""What people compare and agree to before a secure sum."""

import pytest

pytest.importorskip("flwr")

from fedran.core.errors import Refused
from fedran.federation.ops.enrolment import Enrolment, add_edge_member
from fedran.federation.ops.scaffold import (
    DeclaredFeatures,
    make_federation,
    make_site,
)
from fedran.federation.ops.sums import repeat_sum, show_roster, trust_roster
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.settings import ServerPaths
from fedran.federation.site.settings import SitePaths


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secure") / "t"
    features = DeclaredFeatures(6)
    make_federation(folder, n_sites=3, features=features, privacy="secure", classes=("cat", "dog"))
    return folder


def test_a_new_federation_on_one_machine_has_pinned_rosters(made):
    settings = ServerPaths(made / "server").settings()
    assert (settings.privacy, settings.classes, settings.min_clients) == (
        "secure",
        ["cat", "dog"],
        3,
    )
    shown = [show_roster(made), *(show_roster(made / "sites" / f"site-{i}") for i in (1, 2, 3))]
    assert len({roster.fingerprint for roster in shown}) == 1
    assert [roster.pinned for roster in shown] == [None, True, True, True]


def test_a_changed_roster_is_pinned_only_with_its_fingerprint(made, tmp_path):
    site, file = made / "sites" / "site-1", tmp_path / "roster.toml"
    before = show_roster(site)
    other = {**before.clients, "site-9": before.clients["site-2"]}
    Roster(other).save(file)
    found = show_roster(site, file)
    assert (found.pinned, found.marks) == (False, {"site-9": "NEW"})
    with pytest.raises(Refused, match="fingerprint"):
        trust_roster(site, before.fingerprint, file)
    assert show_roster(site).pinned
    typed = found.fingerprint.replace(" ", "").upper()
    assert trust_roster(site, typed, file).pinned
    assert not show_roster(site, made / "server" / "roster.toml").pinned
    Roster({"site-9": before.clients["site-2"]}).save(file)
    with pytest.raises(Refused, match="one that lists this site"):
        trust_roster(site, show_roster(site, file).fingerprint, file)


def test_a_new_site_has_no_roster_until_it_is_shown_one(made, tmp_path):
    enrolment = make_site(
        tmp_path / "new",
        federation="trial",
        client="site-4",
        server="127.0.0.1:9443",
        ca=made / "server" / "tls" / "ca.crt",
        privacy="secure",
    )
    with pytest.raises(FileNotFoundError, match="--file"):
        show_roster(tmp_path / "new")
    with pytest.raises(ValueError, match="the folder of a site"):
        trust_roster(made, show_roster(made).fingerprint)
    with pytest.raises(Refused, match="privacy"):
        add_edge_member(ServerPaths(made / "server"), enrolment, "site-1")
    assert isinstance(enrolment, Enrolment)


def test_only_a_task_with_a_sum_can_be_repeated(made):
    with pytest.raises(FileNotFoundError, match="no secure sum"):
        repeat_sum(SitePaths(made / "sites" / "site-1"), "may", another=False)


@pytest.mark.parametrize("n", [1, 2])
def test_a_federation_with_too_few_sites_for_a_sum_is_refused(tmp_path, n):
    with pytest.raises(ValueError, match="at least 3"):
        make_federation(tmp_path / "t", n_sites=n, privacy="secure")


def test_secure_sums_need_a_list_of_classes(tmp_path):
    features = DeclaredFeatures(6)
    with pytest.raises(ValueError, match="needs `classes`"):
        make_federation(tmp_path / "t", n_sites=3, features=features, privacy="secure")
