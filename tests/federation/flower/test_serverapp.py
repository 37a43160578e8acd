"""A run of the server opens its store with the rules of its settings."""

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from fedran.core.errors import Refused
from fedran.federation.flower import serverapp
from fedran.federation.server import settings as server_settings
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store.store import Store
from helpers.federation.made_federation import SUMS, D, Sites, large


@pytest.fixture(scope="module")
def sites():
    return Sites("site-1", "site-2")


@pytest.fixture
def here(sites, tmp_path):
    sites.roster.save(tmp_path / "roster.toml")
    return tmp_path


@pytest.fixture
def opened(here):
    made = []

    def make(**changes):
        settings = ServerSettings("trial", D, **{"source": "test", **changes})
        made.append(Store.open(here, settings))
        return made[-1]

    yield make
    for store in made:
        store.close()


def test_the_store_is_in_the_folder_of_the_server_and_can_be_opened_again(opened, sites, here):
    blob = sites.envelope("site-1", "may")
    assert opened().receive(blob).outcome == "accepted"
    assert (here / "state" / "store.db").is_file()
    assert opened().receive(blob).outcome == "duplicate"


def test_the_store_applies_the_rules_of_the_settings(opened, sites, monkeypatch):
    blob = sites.envelope("site-1", "may")
    assert "feature map differs" in opened(kind="hellinger").receive(blob).reason
    assert "feature map differs" in opened(source="other").receive(blob).reason
    monkeypatch.setattr(server_settings, "LEAST_LIMIT", 1024)
    blob = sites.envelope("site-1", "may", large(1))
    assert len(blob) > 2048
    assert "at most 2048" in opened(budget_bytes=1024).receive(blob).reason


@pytest.mark.parametrize(("given", "expected"), [(0.0, 3600.0), (90.0, 90.0)])
def test_a_run_may_have_a_deadline_of_its_own(given, expected, here, monkeypatch):
    text = f'federation = "trial"\nin_features = {D}\n'
    (here / "server.toml").write_text(text)
    monkeypatch.setenv(serverapp.VARIABLE, str(here / "server.toml"))
    found = []
    run = lambda self, task: found.append((task, self.settings.deadline))  # noqa: E731
    monkeypatch.setattr(serverapp.Round, "run", run)
    config = {"task": "may", "deadline": given}
    serverapp.main(None, Context(1, 2, {}, RecordDict(), config))
    assert found == [("may", expected)]


def test_opening_the_store_reads_the_roster(opened, sites, here):
    sites.roster.without("site-1").save(here / "roster.toml")
    assert "a site of the roster" in opened().receive(sites.envelope("site-1", "may")).reason
    sites.roster.save(here / "roster.toml")
    assert opened().receive(sites.envelope("site-1", "may")).outcome == "accepted"


def test_a_missing_or_wrong_roster_is_an_error_of_one_sentence(opened, here):
    (here / "roster.toml").write_text("[clients]\nx = 3\n")
    with pytest.raises(Refused, match="x: expected text such as ed25519:"):
        opened()
    (here / "roster.toml").unlink()
    with pytest.raises(FileNotFoundError, match="expected the roster"):
        opened()


@pytest.mark.parametrize("change", [{"source": "other"}, SUMS])
def test_a_store_of_another_feature_map_is_refused(change, opened, sites):
    """A changed source or kind of upload must not go unnoticed: all later uploads differ."""
    opened().receive(sites.envelope("site-1", "may"))
    with pytest.raises(Refused, match="the features of the uploads in the store"):
        opened(**change)
