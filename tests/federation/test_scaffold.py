"""Folders of a server, of sites and of a trial: complete, private, and never half-made."""

import os
import stat
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.data.catalogue import digits
from fedran.federation.ops.enrolment import Card
from fedran.federation.ops.node_key import make_node_key
from fedran.federation.ops.scaffold import (
    CARD,
    Trial,
    add_site,
    make_server,
    make_site,
    make_trial,
    remove_site,
)
from fedran.federation.protocol.identity import Roster, SiteKey
from fedran.federation.server.settings import ServerPaths, ServerSettings
from fedran.federation.site.settings import SitePaths, trial_sites
from fedran.federation.site.source import FolderSource

SETTINGS = ServerSettings("trial", 6, 48, address="127.0.0.1:9")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def tree(folder):
    """Every file below a folder with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def server(tmp_path):
    return make_server(tmp_path / "server", SETTINGS)


@pytest.fixture
def join(server, tmp_path):
    def call(name, **changes):
        told = {"federation": "trial", "server": "fl.example.org:9443", **changes}
        told.setdefault("ca", server.tls / "ca.crt")
        return make_site(tmp_path / name, client=name, **told)

    return call


def nodes(place):
    return {p.stem: p.read_text() for p in place.nodes.iterdir()}


def test_a_server_is_ready_to_run(server):
    assert server.settings() == SETTINGS
    assert Roster.load(server.roster).clients == {}
    assert {p.name for p in server.tls.iterdir()} == {
        "ca.crt",
        "ca.key",
        "server.crt",
        "server.key",
    }
    assert mode(server.folder) == mode(server.nodes) == mode(server.tls) == 0o700
    assert mode(server.roster) == mode(server.settings_file) == 0o600


@pytest.mark.parametrize(
    "changes",
    [
        {"source": 'pixels "of" \\ digits'},
        {"validation": "my rows.npz"},
        {"deadline": 7.5, "min_clients": 3, "budget_bytes": 4096},
        *(
            pytest.param(c)
            for c in (
                {"seed": 5},
                {"catch_up": 5.0},
                {"largest_upload": 2_000_000},
                {"snapshot_every": 3},
                {"state": "elsewhere"},
                {"source": {"backbone": "mine", "weights": "ab"}},
                {"source": "smile \U0001f600"},
            )
        ),
    ],
)
def test_the_servers_file_says_what_it_was_made_with(changes, tmp_path):
    settings = replace(SETTINGS, **changes)
    assert make_server(tmp_path / "server", settings).settings() == settings


def test_a_site_has_its_keys_and_a_card_of_their_public_halves(join, server, tmp_path):
    card = join("site-1")
    place = SitePaths.find(tmp_path / "site-1")
    assert Card.load(place.folder / CARD) == card
    assert SiteKey.load(place.folder / "site.key").public == card.key
    found = place.settings()
    assert (found.federation, found.client, found.server) == (
        "trial",
        "site-1",
        "fl.example.org:9443",
    )
    assert (place.folder / found.ca).read_bytes() == (server.tls / "ca.crt").read_bytes()
    FolderSource(place.folder / found.folder)
    assert mode(place.folder) == 0o700
    assert mode(place.folder / "site.key") == mode(place.folder / "node.key") == 0o600
    secret = (place.folder / "site.key").read_text().strip()
    assert secret not in (place.folder / CARD).read_text()


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_an_empty_folder_that_others_could_read_is_made_private(join, tmp_path):
    (tmp_path / "site-1").mkdir()
    (tmp_path / "site-1").chmod(0o755)
    join("site-1")
    assert mode(tmp_path / "site-1") == 0o700


def test_a_folder_with_something_in_it_is_refused_and_left_alone(join, server, tmp_path):
    (tmp_path / "site-1").mkdir()
    (tmp_path / "site-1" / ".hidden").write_text("mine")
    with pytest.raises(FileExistsError, match="site-1: is not empty; name a new folder"):
        join("site-1")
    assert [p.name for p in (tmp_path / "site-1").iterdir()] == [".hidden"]
    before = tree(server.folder)
    with pytest.raises(FileExistsError, match="is not empty"):
        make_server(server.folder, SETTINGS)
    assert tree(server.folder) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"federation": "a b"}, "federation: expected"),
        ({"server": "nowhere"}, "address: expected host:port"),
        ({"server": "nowhere:0x1"}, "address: expected host:port"),
    ],
)
def test_a_site_with_wrong_words_is_not_begun(changes, words, join, tmp_path):
    with pytest.raises(Refused, match=words):
        join("site-1", **changes)
    with pytest.raises(Refused, match="client: expected"):
        join("..%2f")
    with pytest.raises(FileNotFoundError, match=r"expected the server's ca\.crt"):
        join("site-1", ca=tmp_path / "none.crt")
    assert not (tmp_path / "site-1").exists()
    join("site-1")


def test_a_site_refuses_an_authority_that_is_no_certificate(join, server, tmp_path):
    with pytest.raises(Refused, match="a certificate"):
        join("site-1", ca=server.tls / "server.key")
    assert not (tmp_path / "site-1").exists()


def test_after_a_wrong_host_the_same_command_works_with_the_right_one(tmp_path):
    with pytest.raises(Refused, match="host"):
        make_server(tmp_path / "server", SETTINGS, hosts=("bücher.example",))
    make_server(tmp_path / "server", SETTINGS, hosts=("buecher.example",))


def test_roster_and_nodes_agree_through_adding_and_removing(join, server):
    cards = [join(name) for name in ("site-1", "site-2", ".dot", "a.pub")]
    for card in (*cards, cards[0]):
        add_site(server, card)
    assert Roster.load(server.roster).clients == {c.client: c.key for c in cards}
    assert nodes(server) == {c.client: c.node for c in cards}
    remove_site(server, "site-1")
    assert Roster.load(server.roster).clients.keys() == nodes(server).keys()
    assert "site-1" not in nodes(server)
    with pytest.raises(Refused, match="a site of the roster"):
        remove_site(server, "site-1")
    remove_site(server, "site-2")
    add_site(server, cards[0])
    assert nodes(server)["site-1"] == cards[0].node


def test_a_site_without_a_node_key_can_still_be_removed(join, server):
    add_site(server, join("site-1"))
    (server.nodes / "site-1.pub").unlink()
    remove_site(server, "site-1")
    assert Roster.load(server.roster).clients == {}


def test_a_site_cannot_be_removed_by_the_name_of_a_file(join, server):
    add_site(server, join("site-1"))
    (server.folder / "keep.pub").write_text("x")
    for name in ("../keep", "", "site", "site-1.pub"):
        with pytest.raises(Refused, match="a site of the roster"):
            remove_site(server, name)
    assert (server.folder / "keep.pub").exists()


def test_a_card_of_another_federation_changes_nothing(join, server):
    add_site(server, join("site-1"))
    before = tree(server.folder)
    with pytest.raises(Refused, match="federation: expected trial, got elsewhere"):
        add_site(server, join("site-2", federation="elsewhere"))
    assert tree(server.folder) == before


def test_a_known_client_with_another_key_changes_nothing(join, server, tmp_path):
    card = join("site-1")
    add_site(server, card)
    before = tree(server.folder)
    thief = replace(card, key=SiteKey.generate().public, node=make_node_key(tmp_path / "thief.key"))
    with pytest.raises(Refused, match="a new id, or the known key of site-1"):
        add_site(server, thief)
    assert tree(server.folder) == before


def test_a_roster_that_cannot_be_written_lets_no_node_in(join, server, monkeypatch):
    """Not half-changed: connecting without being able to upload helps nobody."""
    card = join("site-1")
    monkeypatch.setattr(Roster, "save", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(OSError, match="No space"):
        add_site(server, card)
    monkeypatch.undo()
    assert (Roster.load(server.roster).clients, nodes(server)) == ({}, {})
    add_site(server, card)
    assert nodes(server) == {"site-1": card.node}


def test_the_node_key_of_another_site_is_refused(join, server):
    first, second = join("site-1"), join("site-2")
    add_site(server, first)
    with pytest.raises(Refused):
        add_site(server, replace(second, node=first.node))
    assert set(nodes(server)) == {"site-1"}


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trial")
    return folder, make_trial(folder, Trial(n_sites=3, tasks=4))


def test_a_trials_sites_are_those_of_roster_and_nodes(trial):
    folder, places = trial
    server = ServerPaths.find(folder)
    names = [p.settings().client for p in places]
    assert names == ["site-1", "site-2", "site-3"]
    assert [p.folder for p in trial_sites(folder)] == [p.folder for p in places]
    roster = Roster.load(server.roster).clients
    for place in places:
        card = Card.load(place.folder / CARD)
        assert roster[card.client] == card.key == SiteKey.load(place.folder / "site.key").public
        assert nodes(server)[card.client] == card.node
        assert mode(place.folder) == 0o700
        assert place.settings().server == server.settings().address
    assert set(roster) == set(nodes(server)) == set(names)
    assert server.settings().min_clients <= len(names)


def test_the_samples_rows_are_dealt_completely_and_none_twice(trial):
    folder, places = trial
    data, dealt, seen = digits(), [], []
    for number in range(1, 5):
        classes = set()
        for place in places:
            rows = FolderSource(place.folder / "data")(f"task-{number}")
            assert len(rows.X)
            dealt += [(*x, label) for x, label in zip(rows.X.tolist(), rows.y, strict=True)]
            classes |= set(rows.y)
        seen.append(classes)
    expected = [(*x, y) for x, y in zip(data.X_train.tolist(), data.y_train.tolist(), strict=True)]
    assert sorted(dealt) == sorted(expected)
    assert sum(map(len, seen)) == len(set().union(*seen)) == 10
    with np.load(folder / "server" / "validation.npz") as file:
        assert (file["features"] == data.X_test).all()
        assert (file["labels"] == data.y_test).all()


def test_names_of_many_sites_sort_as_they_count(tmp_path):
    places = make_trial(tmp_path, Trial(n_sites=10, in_features=6))
    assert [p.folder.name for p in places] == [f"site-{i:02d}" for i in range(1, 11)]
    assert trial_sites(tmp_path) == places
    assert not list(tmp_path.rglob("*.npz"))
    found = ServerPaths.find(tmp_path).settings()
    assert (found.in_features, found.source, found.validation) == (6, "", None)


def test_a_server_alone_needs_no_sites(tmp_path):
    assert make_trial(tmp_path, Trial(n_sites=0, in_features=6, hosts=("fl.example.org",))) == []
    assert trial_sites(tmp_path) == []
    assert ServerPaths.find(tmp_path).settings().min_clients == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_sites": -1}, "sites: expected from 0 to 1000, got -1"),
        ({"n_sites": 1001}, "sites: expected from 0 to 1000, got 1001"),
        ({"tasks": 0}, "tasks: expected from 1 to 10"),
        ({"tasks": 11}, "tasks: expected from 1 to 10"),
        ({"federation": "a b"}, "federation: expected"),
        ({"address": "9443"}, "address: expected host:port"),
        ({"out_features": 0}, "out_features: expected from 1"),
        ({"in_features": -3}, "in_features: expected from 1"),
        pytest.param(
            {"in_features": 0},
            "in_features: expected from 1",
        ),
    ],
)
def test_a_wrong_trial_leaves_nothing_behind(changes, words, tmp_path):
    with pytest.raises(Refused, match=words):
        make_trial(tmp_path / "trial", Trial(**changes))
    assert not (tmp_path / "trial").exists()


def test_a_place_is_found_from_inside_and_from_above(trial, tmp_path, monkeypatch):
    folder, places = trial
    server = ServerPaths(folder / "server")
    assert ServerPaths.find(folder) == ServerPaths.find(folder / "server") == server
    monkeypatch.chdir(folder)
    assert ServerPaths.find(".") == ServerPaths.find("server") == server
    assert SitePaths.find("sites/site-2") == places[1]
    assert server.flower != replace(server, flower_name="simulation").flower
    for find, words in (
        (ServerPaths.find, "no server.toml here"),
        (SitePaths.find, "no site.toml"),
    ):
        for wrong in (tmp_path, tmp_path / "none"):
            with pytest.raises(FileNotFoundError, match=words):
                find(wrong)


def test_a_places_folders_follow_its_settings(server):
    with server.settings_file.open("a") as file:
        file.write('state = "memory"\nroster = "who.toml"\n')
    assert (server.state, server.roster) == (server.folder / "memory", server.folder / "who.toml")
