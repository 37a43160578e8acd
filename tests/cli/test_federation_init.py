"""``fedran federation init``: what it creates, and what it refuses."""

import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedran.federation.ops import scaffold
from helpers.one_line_error import refused


def test_init_prints_what_it_created_and_the_next_commands(call, tmp_path):
    code, out, err = call("init", "t")
    assert (code, err) == (0, "")
    assert "2 sites" in out
    commands = re.findall(r"^  fedran federation (\w+) (\S+)", out, re.M)
    assert commands == [("up", "t"), ("task", "t"), ("status", "t"), ("down", "t")]
    assert "task t task-1" in out
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == ["authority", "server", "sites"]
    assert (tmp_path / "t" / "sites" / "site-1" / "data" / "task-2.npz").is_file()
    assert max(map(len, out.splitlines())) <= 80
    for file in ("server/server.toml", "sites/site-1/site.toml"):
        assert tomllib.loads((tmp_path / "t" / file).read_text())["federation"] == "t"


def test_init_quotes_a_folder_whose_name_has_a_space(call):
    _, out, _ = call("init", "my trial", "--federation", "t")
    commands = [shlex.split(line, comments=True) for line in out.splitlines() if "  fedran" in line]
    assert [c[3] for c in commands] == 4 * ["my trial"]


def kind_of(folder):
    return re.search(r'^kind = "(\w+)"', (folder / "server" / "server.toml").read_text(), re.M)[1]


def test_init_takes_the_kind_from_a_feature_file_or_from_the_option(call, tmp_path):
    X, y = np.eye(3), [0, 1, 0]
    arrays = {"train": X, "test": X, "train_labels": y, "test_labels": y, "nonnegative": True}
    np.savez(tmp_path / "f.npz", **arrays, backbone="net")
    assert call("init", "a", "--sites", 0, "--features", "f.npz")[0] == 0
    text = (tmp_path / "a" / "server" / "server.toml").read_text()
    assert kind_of(tmp_path / "a") == "hellinger"
    assert "in_features = 3" in text
    assert 'source = {"backbone" = "net"}' in text
    for options, kind in [
        (["--features", "f.npz", "--kind", "cosine"], "cosine"),
        (["--in-features", 6], "cosine"),
        (["--in-features", 6, "--kind", "hellinger"], "hellinger"),
    ]:
        name = f"t{len(list(tmp_path.iterdir()))}"
        assert call("init", name, "--sites", 0, *options)[0] == 0
        assert kind_of(tmp_path / name) == kind


def test_init_reads_a_table_once_with_any_column_of_labels(call, tmp_path, monkeypatch):
    reads, read = [], scaffold.read_feature_file
    monkeypatch.setattr(
        scaffold, "read_feature_file", lambda *args, **kw: reads.append(args) or read(*args, **kw)
    )
    lines = [f"{i},{i % 4},{'ab'[i % 2]}" for i in range(20)]
    (tmp_path / "f.csv").write_text("\n".join(["x,z,kind", *lines]))
    given = ("--sites", 0, "--features", "f.csv", "--privacy", "secure")
    refused(call("init", "t", *given), 'x, z, kind; name the column of labels with --label "kind"')
    reads.clear()
    code, out, _ = call("init", "t", *given, "--label", "kind")
    assert len(reads) == 1
    assert (code, "The 2 columns are listed in server.toml." in out) == (0, True)
    settings = tomllib.loads((tmp_path / "t" / "server" / "server.toml").read_text())
    assert (settings["in_features"], settings["classes"]) == (2, ["a", "b"])
    assert settings["columns"] == ["x", "z"]


def test_init_wants_one_description_of_the_features(call, tmp_path):
    both = ("--in-features", 6, "--features", "f.npz")
    refused(call("init", "t", *both), "one of --in-features, --features and --backbone")
    refused(call("init", "t", "--kind", "cosine"), "name them with --in-features")
    refused(call("init", "t", "--features", "f.npz"), "f.npz does not exist")
    assert call("init", "t", "--in-features", 6, "--kind", "relu")[0] == 2
    assert not (tmp_path / "t").exists()


def test_init_without_sites_creates_a_server_alone(call, tmp_path):
    options = ("--sites", "0", "--federation", "hospitals-2026", "--in-features", "1280")
    code, out, err = call("init", "h", *options, "--address", "0.0.0.0:9443", "--host", "fl.org")
    assert (code, err) == (0, "")
    assert "fedran federation server h" in out
    assert "fedran federation join" in out
    assert " up " not in out
    text = (tmp_path / "h" / "server" / "server.toml").read_text()
    for line in ('federation = "hospitals-2026"', 'address = "0.0.0.0:9443"', "= 1280"):
        assert line in text
    assert ('privacy = "none"' in text, "min_group = 5" in text) == (True, True)
    assert "no mean of fewer than 5 rows" in out
    assert not (tmp_path / "h" / "sites").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--sites", "-1"), "sites: expected from 0 to 1000"),
        (("--sites", "many"), "many"),
        (("--federation", "a/b"), "federation must be"),
        (("--address", "9443"), "address must be host:port"),
        (("--in-features", "-5"), "in_features must be from 1"),
        (("--host", "bücher.example"), "host: expected a host name"),
        (("--in-features", "0"), "in_features must be from 1"),
        (("--privacy", "secure", "--classes", "a,b"), "the sample rows have the classes 0 to 9"),
    ],
)
def test_init_with_a_wrong_option_is_an_error_of_one_line(options, words, call):
    refused(call("init", "t", *options), words)


def test_init_does_not_change_a_folder_with_contents(call, trial, tmp_path):
    before = sorted(p.read_bytes() for p in (tmp_path / "t").rglob("*.key"))
    refused(call("init", "t"), "t/server: is not empty; name a new folder")
    assert sorted(p.read_bytes() for p in (tmp_path / "t").rglob("*.key")) == before


def test_labels_of_the_command_line_are_numbers_where_those_of_tables_are(call, tmp_path):
    given = ("--sites", 0, "--in-features", 6, "--classes")
    assert call("init", "t", *given, '-1, 1, "2", 01, other,')[0] == 0
    settings = tomllib.loads((tmp_path / "t" / "server" / "server.toml").read_text())
    assert settings["classes"] == [-1, 1, "01", "2", "other"]


def test_a_federation_with_differential_privacy_needs_a_budget(call):
    refused(call("init", "x", "--privacy", "dp"), "needs `epsilon`")
    code, out, err = call("init", "s", "--privacy", "dp", "--epsilon", "3")
    assert (code, err, "no mean of fewer" in out) == (0, "", False)
    settings = tomllib.loads(Path("s/server/server.toml").read_text())
    assert (settings["privacy"], settings["epsilon"]) == ("dp", 3.0)
    assert "min_group" not in settings
    assert settings["out_features"] == settings["in_features"] == 64
    assert tomllib.loads(Path("s/sites/site-1/site.toml").read_text())["privacy"] == "dp"
