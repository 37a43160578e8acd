"""Folders of a server, of a site and of a federation: complete, private, never half-made."""

import os
import stat
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.data.catalogue import digits
from fedran.federation.ops.enrolment import ENROLMENT_FILE, Enrolment
from fedran.federation.ops.scaffold import (
    make_federation,
    make_server,
    make_site,
    settings_of_backbone,
    settings_of_file,
)
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.settings import ServerPaths, ServerSettings
from fedran.federation.site.settings import SitePaths, local_sites
from fedran.federation.site.source import FolderSource
from helpers.toy_backbone import toy

SETTINGS = ServerSettings("trial", 6, address="127.0.0.1:9")


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


def test_a_new_server_has_settings_roster_and_certificates(server):
    assert server.settings() == SETTINGS
    assert Roster.load(server.roster).clients == {}
    assert {p.name for p in server.tls.iterdir()} == {"ca.crt", "server.crt", "server.key"}
    assert mode(server.folder.parent / "authority" / "ca.key") == 0o600
    assert mode(server.folder) == mode(server.nodes) == mode(server.tls) == 0o700
    assert mode(server.roster) == mode(server.settings_file) == 0o600


@pytest.mark.parametrize(
    "changes",
    [
        {"source": 'pixels "of" \\ digits'},
        {"validation": "my rows.npz"},
        {"deadline": 7.5, "min_clients": 3, "budget_bytes": 4096},
        {"seed": 5},
        {"catch_up": 5.0},
        {"privacy": "secure", "out_features": 48, "classes": [1, 2]},
        {"min_group": 1, "group_size": 1, "landmarks": 100},
        {"source": {"backbone": "mine", "weights": "ab"}},
        {"source": "smile \U0001f600"},
    ],
)
def test_server_toml_contains_the_settings_it_was_created_with(changes, tmp_path):
    settings = replace(SETTINGS, **changes)
    assert make_server(tmp_path / "server", settings).settings() == settings


def test_a_new_site_has_keys_and_an_enrolment_file_with_their_public_halves(join, server, tmp_path):
    enrolment = join("site-1")
    place = SitePaths.find(tmp_path / "site-1")
    assert Enrolment.load(place.folder / ENROLMENT_FILE) == enrolment
    assert SiteKey.load(place.folder / "site.key").public == enrolment.key
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
    assert secret not in (place.folder / ENROLMENT_FILE).read_text()


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_an_existing_empty_folder_becomes_private(join, tmp_path):
    (tmp_path / "site-1").mkdir()
    (tmp_path / "site-1").chmod(0o755)
    join("site-1")
    assert mode(tmp_path / "site-1") == 0o700


def test_a_folder_that_is_not_empty_is_refused_and_unchanged(join, server, tmp_path):
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
        ({"federation": "a  b"}, "federation: expected"),
        ({"server": "nowhere"}, "address: expected host:port"),
        ({"server": "nowhere:0x1"}, "address: expected host:port"),
    ],
)
def test_wrong_arguments_create_no_site(changes, words, join, tmp_path):
    with pytest.raises(Refused, match=words):
        join("site-1", **changes)
    with pytest.raises(Refused, match="client: expected"):
        join("..%2f")
    with pytest.raises(FileNotFoundError, match=r"expected the server's ca\.crt"):
        join("site-1", ca=tmp_path / "none.crt")
    assert not (tmp_path / "site-1").exists()
    join("site-1")


def test_a_ca_file_that_is_not_a_certificate_creates_no_site(join, server, tmp_path):
    with pytest.raises(Refused, match="a certificate"):
        join("site-1", ca=server.tls / "server.key")
    assert not (tmp_path / "site-1").exists()


def test_a_wrong_host_leaves_nothing_in_the_way_of_a_second_try(tmp_path):
    with pytest.raises(Refused, match="host"):
        make_server(tmp_path / "server", SETTINGS, hosts=("bücher.example",))
    make_server(tmp_path / "server", SETTINGS, hosts=("buecher.example",))


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trial")
    return folder, make_federation(folder, n_sites=3)


def test_sites_roster_and_node_keys_of_a_new_federation_agree(trial):
    folder, places = trial
    server = ServerPaths.find(folder)
    names = [p.settings().client for p in places]
    assert names == ["site-1", "site-2", "site-3"]
    assert [p.folder for p in local_sites(folder)] == [p.folder for p in places]
    roster = Roster.load(server.roster).clients
    for place in places:
        enrolment = Enrolment.load(place.folder / ENROLMENT_FILE)
        assert (
            roster[enrolment.client]
            == enrolment.key
            == SiteKey.load(place.folder / "site.key").public
        )
        assert nodes(server)[enrolment.client] == enrolment.node
        assert mode(place.folder) == 0o700
        assert place.settings().server == server.settings().address
    assert set(roster) == set(nodes(server)) == set(names)
    assert server.settings().min_clients <= len(names)


def test_each_row_of_the_sample_data_is_at_exactly_one_site(trial):
    folder, places = trial
    data, dealt, seen = digits(), [], []
    for number in range(1, 3):
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


def test_names_of_many_sites_sort_by_their_numbers(tmp_path):
    places = make_federation(tmp_path, n_sites=10, in_features=6)
    assert [p.folder.name for p in places] == [f"site-{i:02d}" for i in range(1, 11)]
    assert local_sites(tmp_path) == places
    assert not list(tmp_path.rglob("*.npz"))
    found = ServerPaths.find(tmp_path).settings()
    assert (found.in_features, found.source, found.validation) == (6, "", None)
    assert found.kind == "cosine"


def test_a_federation_without_sites_is_a_server_alone(tmp_path):
    assert (
        make_federation(
            tmp_path,
            n_sites=0,
            in_features=6,
            hosts=("fl.example.org",),
        )
        == []
    )
    assert local_sites(tmp_path) == []
    assert ServerPaths.find(tmp_path).settings().min_clients == 1


def test_the_sample_data_are_declared_never_negative(tmp_path):
    make_federation(tmp_path, n_sites=0)
    assert ServerPaths.find(tmp_path).settings().kind == "hellinger"


@pytest.mark.parametrize("declared", [True, False, None])
def test_width_kind_and_source_come_from_a_feature_file(declared, tmp_path):
    X = np.eye(4, 3) if declared else -np.eye(4, 3)
    arrays = {} if declared is None else {"nonnegative": declared}
    labels = {"train_labels": [0, 1, 0, 1], "test_labels": [0, 1, 0, 1]}
    np.savez(tmp_path / "f.npz", train=X, test=X, backbone="net", **labels, **arrays)
    settings = settings_of_file(tmp_path / "f.npz")
    make_federation(tmp_path / "trial", n_sites=0, **settings)
    found = ServerPaths.find(tmp_path / "trial").settings()
    kind = "hellinger" if declared else "cosine"
    assert (found.in_features, found.kind, found.source) == (3, kind, {"backbone": "net"})
    assert found.offer("may").kind == kind
    assert found.offer("may").features().kind == kind


def test_width_kind_and_source_come_from_a_backbone(monkeypatch):
    network = replace(toy()[0], nonnegative=True)
    monkeypatch.setattr("fedran.backbones.catalogue.load_backbone", lambda spec: network)
    expected = {"in_features": 3, "kind": "hellinger", "source": network.source}
    assert settings_of_backbone("toy") == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_sites": -1}, "sites: expected from 0 to 1000, got -1"),
        ({"n_sites": 1001}, "sites: expected from 0 to 1000, got 1001"),
        ({"federation": "a  b"}, "federation must be"),
        ({"address": "9443"}, "address must be host:port"),
        ({"out_features": 0}, "out_features must be from 1"),
        ({"in_features": -3}, "in_features must be from 1"),
        ({"in_features": 0}, "in_features must be from 1"),
    ],
)
def test_wrong_options_create_no_federation(changes, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        make_federation(tmp_path / "trial", **changes)
    assert not (tmp_path / "trial").exists()


def test_folders_are_found_from_inside_and_from_above(trial, tmp_path, monkeypatch):
    folder, places = trial
    server = ServerPaths(folder / "server")
    assert ServerPaths.find(folder) == ServerPaths.find(folder / "server") == server
    monkeypatch.chdir(folder)
    assert ServerPaths.find(".") == ServerPaths.find("server") == server
    assert SitePaths.find("sites/site-2") == places[1]
    for find, words in (
        (ServerPaths.find, "no server.toml here"),
        (SitePaths.find, "no site.toml"),
    ):
        for wrong in (tmp_path, tmp_path / "none"):
            with pytest.raises(FileNotFoundError, match=words):
                find(wrong)


def test_sites_of_a_table_know_its_column_of_labels(tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("age,dose,sick\n" + "40,1,yes\n50,2,no\n" * 5)
    (site,) = make_federation(tmp_path / "f", n_sites=1, **settings_of_file(table, "sick"))
    assert site.settings().label_column == "sick"
    assert ServerPaths.find(tmp_path / "f").settings().label_column == "sick"


def test_epsilon_becomes_the_limit_of_the_sites_that_init_makes(tmp_path):
    for place in make_federation(tmp_path / "t", n_sites=3, privacy="dp", epsilon=1.0):
        assert place.settings().max_epsilon == 1.0
