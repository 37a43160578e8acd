"""What a run of the server begins with: its state, its rules, and rows to try a head on."""

import numpy as np
import pytest

pytest.importorskip("flwr")

import fedran
from fedran.core.errors import Refused
from fedran.federation.server.app import open_store
from fedran.federation.server.head import ValidationSet
from fedran.federation.server.settings import ServerSettings
from helpers.made_federation import D, M, Sites, upload

SETTINGS = ServerSettings("trial", D, M, source="test")


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
        settings = ServerSettings("trial", D, M, **{"source": "test", **changes})
        made.append(open_store(settings, here))
        return made[-1]

    yield make
    for store in made:
        store.close()


def test_the_state_is_where_the_settings_say_and_survives(opened, sites, here):
    blob = sites.envelope("site-1", "may")
    assert opened(state="memory").receive(blob).outcome == "accepted"
    assert (here / "memory" / "journal").is_file()
    assert opened(state="memory").receive(blob).outcome == "duplicate"


def test_the_settings_are_the_rules(opened, sites):
    blob = sites.envelope("site-1", "may")
    small = opened(largest_upload=2048, budget_bytes=1024, state="a")
    assert len(blob) > 2048
    assert "at most 2048" in small.receive(blob).reason
    assert "feature map differs" in opened(seed=1, state="b").receive(blob).reason
    assert "feature map differs" in opened(source="other", state="c").receive(blob).reason


def test_the_roster_is_read_when_it_is_opened(opened, sites, here):
    sites.roster.without("site-1").save(here / "roster.toml")
    assert "a site of the roster" in opened().receive(sites.envelope("site-1", "may")).reason
    sites.roster.save(here / "roster.toml")
    assert opened().receive(sites.envelope("site-1", "may")).outcome == "accepted"


def test_a_missing_or_wrong_roster_is_one_sentence(opened, here):
    (here / "roster.toml").write_text("[clients]\nx = 3\n")
    with pytest.raises(Refused, match="x: expected text such as ed25519:"):
        opened()
    (here / "roster.toml").unlink()
    with pytest.raises(FileNotFoundError, match="expected the roster"):
        opened()


@pytest.mark.parametrize("every", [pytest.param(1), 20])
def test_another_feature_map_over_an_old_state_is_refused_in_one_sentence(every, opened, sites):
    """A changed seed or width in server.toml must not go unnoticed: all later uploads differ."""
    opened(snapshot_every=every).receive(sites.envelope("site-1", "may"))
    with pytest.raises(Refused, match=r"fingerprint|features"):
        opened(snapshot_every=every, seed=1)


def head():
    server = fedran.Aggregator(M, fingerprint=SETTINGS.offer("any").features().fingerprint)
    server.absorb(fedran.decode(upload(0, classes=("cat", "dog"))), client="a", task="t")
    return server.solve()


def rows(here, labels, **arrays):
    X = np.random.default_rng(0).random((len(labels), D))
    np.savez(here / "v.npz", **{"features": X, "labels": np.array(labels), **arrays})
    settings = ServerSettings("trial", D, M, source="test", validation="v.npz")
    return ValidationSet.load(settings, here)


def test_no_file_no_validation(here):
    assert ValidationSet.load(SETTINGS, here) is None


def test_accuracy_is_the_share_of_rows_of_known_classes(here):
    labels = ["cat", "dog"] * 20 + ["bird"] * 40 + [""] * 3
    found = rows(here, labels)
    model = head()
    with np.load(here / "v.npz") as file:
        X = file["features"][:40]
    phi = SETTINGS.offer("any").features()
    expected = np.mean(model.predict(phi(X)) == np.array(labels[:40]))
    assert 0 < expected < 1
    assert found.accuracy(model) == expected


@pytest.mark.parametrize("labels", [["bird"] * 4, [""] * 4, [0, 1, 0, 1]])
def test_without_rows_of_known_classes_there_is_no_accuracy(labels, here):
    assert rows(here, labels).accuracy(head()) is None


def test_a_file_that_is_none_is_one_sentence(here):
    settings = ServerSettings("trial", D, M, validation="v.npz")
    for text in (None, b"", b"PK nonsense"):
        if text is not None:
            (here / "v.npz").write_bytes(text)
        with pytest.raises(Refused, match=r"v\.npz: expected an \.npz file") as caught:
            ValidationSet.load(settings, here)
        assert "\n" not in str(caught.value)


def test_an_object_array_is_not_unpickled(here):
    np.savez(here / "v.npz", features=np.array([[{}]], dtype=object), labels=np.array([1]))
    with pytest.raises(Refused, match=r"v\.npz: expected an \.npz file"):
        ValidationSet.load(ServerSettings("trial", D, M, validation="v.npz"), here)


@pytest.mark.parametrize(
    "arrays",
    [
        {"features": np.ones((2, D + 1))},
        {"images": np.zeros((2, 4, 4, 3), np.uint8)},
        {"features": np.full((2, D), np.nan)},
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anyone_is_asked(arrays, here):
    X = arrays.get("features")
    file = {"labels": np.array(["cat", "dog"]), **({"features": X} if X is not None else arrays)}
    np.savez(here / "v.npz", **file)
    with pytest.raises(ValueError, match=r"v\.npz"):
        ValidationSet.load(ServerSettings("trial", D, M, source="test", validation="v.npz"), here)
