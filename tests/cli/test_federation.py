"""``fedran federation``: its output, and an error of one line for every wrong use."""

import json
import os
import re
import socket

import pytest

pytest.importorskip("flwr")

from fedran.cli.federation import COMMANDS
from fedran.federation.ops import services
from fedran.federation.ops.enrolment import Enrolment
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.store.database import Database
from helpers.one_line_error import refused

JOIN = ("--federation", "t", "--client", "site-9", "--server", "localhost:9443")
CA = ("--ca", "t/server/tls/ca.crt")


def test_a_site_joins_is_added_and_is_removed(call, trial, tmp_path):
    code, out, err = call("join", "s", *JOIN, *CA)
    assert (code, err) == (0, "")
    assert "s/enrolment.toml" in out
    assert "put TASK.npz, .csv or .parquet there" in out
    assert "TASK.csv or TASK.parquet" in (tmp_path / "s" / "site.toml").read_text()
    assert "fedran federation client s" in out
    secret = (tmp_path / "s" / "site.key").read_text().strip()
    assert secret not in out
    told = re.search(r"fingerprint ([0-9a-f]{4}( [0-9a-f]{4}){4})", out)[1]
    code, out, err = call("add", "t", "s/enrolment.toml")
    assert (code, err) == (0, "")
    assert out.startswith("site-9 is in the roster")
    assert f"fingerprint {told}" in out
    roster = tmp_path / "t" / "server" / "roster.toml"
    key = Enrolment.load(tmp_path / "s" / "enrolment.toml").key
    assert Roster.load(roster).clients["site-9"] == key
    assert call("add", "t/server", "s/enrolment.toml")[0] == 0
    code, out, err = call("remove", "t", "site-9")
    assert (code, err) == (0, "")
    assert out.startswith("site-9 is removed from the roster")
    assert "site-9" not in Roster.load(roster).clients
    refused(call("remove", "t", "site-9"), "client: expected a site of the roster", "did you mean")


def test_a_site_gets_new_keys_which_the_server_takes_as_a_replacement(call, trial, tmp_path):
    assert call("join", "s", *JOIN, *CA)[0] == 0
    assert call("add", "t", "s/enrolment.toml")[0] == 0
    old = (tmp_path / "s" / "enrolment.toml").read_text()
    assert call("join", "again", *JOIN, *CA)[0] == 0
    assert (tmp_path / "again" / "enrolment.toml").read_text() != old
    refused(call("add", "t", "again/enrolment.toml"), "another key")
    assert call("add", "t", "again/enrolment.toml", "--replace")[0] == 0


def test_join_with_wrong_arguments_creates_nothing(call, trial, tmp_path):
    refused(call("join", "s", *JOIN, "--ca", "none.crt"), "none.crt: no such file; expected the")
    refused(call("join", "s", *JOIN), "--ca")
    refused(call("join", "s", *JOIN[:4], "--server", "x", *CA), "address: expected host:port")
    refused(call("join", "s", *JOIN[:2], "--client", "../x", *JOIN[4:], *CA), "client: expected")
    refused(call("join", "s", "--federation", "é", *JOIN[2:], *CA), "federation: expected")
    assert not (tmp_path / "s").exists()
    refused(call("join", "t", *JOIN, *CA), "t: is not empty; name a new folder")


def test_add_refuses_files_that_are_not_an_enrolment_for_this_federation(call, trial, tmp_path):
    refused(call("add", "t", "none.toml"), "none.toml: no such file; expected an enrolment file")
    refused(call("add", "t", "t"), "this is a folder; expected an enrolment file")
    (tmp_path / "x.toml").write_text('client = "\x01"')
    refused(call("add", "t", "x.toml"), "x.toml: not valid TOML")
    (tmp_path / "x.toml").write_text('client = "a"')
    refused(call("add", "t", "x.toml"), "expected client, federation, key, node")
    call("join", "s", "--federation", "other", *JOIN[2:], *CA)
    refused(call("add", "t", "s/enrolment.toml"), "federation: expected t, got other")
    call("join", "s2", *JOIN, *CA)
    refused(call("add", "s2", "s2/enrolment.toml"), "this is a site's folder")
    call("add", "t", "s2/enrolment.toml")
    text = (tmp_path / "s2" / "enrolment.toml").read_text()
    key = Enrolment.load(tmp_path / "s2" / "enrolment.toml").key
    (tmp_path / "x.toml").write_text(text.replace(key, SiteKey.generate().public))
    refused(call("add", "t", "x.toml"), "a new id, or the known key of site-9", "another key")


@pytest.mark.parametrize(
    "command",
    [
        ("server", "F"),
        ("up", "F"),
        ("task", "F", "may"),
        ("accept", "F", "site-1"),
        ("remove", "F", "site-1"),
        ("status", "F"),
    ],
)
def test_a_folder_without_a_server_is_an_error_with_advice(command, call, tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in ("none", "empty"):
        words = [folder if word == "F" else word for word in command]
        refused(call(*words), f"{folder}: no server.toml here", "fedran federation init")
    assert list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "none").exists()


def test_a_folder_without_a_site_is_an_error_with_advice(call, trial):
    refused(call("client", "none"), "none: no site.toml here", "fedran federation join")
    refused(call("client", "t"), "t: no site.toml here; try ", "t/sites/site-1")
    refused(call("check", "t/server", "may"), "this is a server's folder, expected a site's")
    refused(call("revise", "t/sites/site-1", "may"), "the server has not asked for an upload yet")


def test_a_task_needs_a_running_server(call, trial):
    refused(call("task", "t", "may"), "the server is not running; start it with")
    refused(call("task", "t", "../may"), "task: expected")


def test_accept_refuses_a_site_without_an_upload(call, trial):
    refused(call("accept", "t", "site-1"), "site: expected one with an upload, got site-1")


def test_a_store_is_verified_backed_up_and_restored(call, trial, tmp_path):
    refused(call("verify", "t"), "store.db", "expected the database of a server")
    state = tmp_path / "t" / "server" / "state"
    Database(state).close()
    assert call("verify", "t") == (0, "the database is what was written\n", "")
    assert call("backup", "t", "b")[0] == 0
    assert "sites will send again" in call("restore", "t", "b")[1]
    refused(call("forget", "t", "site-1", "--task", "may"), "an upload of site-1 for may, got none")
    refused(call("forget", "t", "../x"), "client: expected")
    (state / "store.db").write_bytes(b"nothing" * 100)
    code, out, _ = call("verify", "t")
    assert (code, "the database is damaged" in out) == (1, True)
    refused(call("server", "t"), "fedran federation verify", "restore")


def test_down_reports_that_nothing_is_running(call, trial):
    for folder in ("t", "t/server", "t/sites/site-1"):
        assert call("down", folder) == (0, "nothing is running here\n", "")


def test_down_of_a_missing_folder_is_an_error(call):
    refused(call("down", "none"), "none")


def test_a_second_server_or_site_in_a_folder_is_refused(call, trial, tmp_path, monkeypatch):
    monkeypatch.setattr(services, "locked", lambda folder, *_, **facts: locked(folder, **facts))
    for command, folder in (("server", "server"), ("client", "sites/site-1")):
        with locked(tmp_path / "t" / folder / "log"):
            told = f"in use by process {os.getpid()}"
            refused(call(command, f"t/{folder}"), told, "fedran federation down")


def test_a_taken_port_is_refused_and_the_lock_is_free_again(call, trial, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        path = tmp_path / "t" / "server" / "server.toml"
        path.write_text(path.read_text().replace("127.0.0.1:9443", f"127.0.0.1:{port}"))
        for _ in range(2):
            code, _, err = call("server", "t")
            assert code == 2
            assert f"127.0.0.1:{port} is in use by another program, maybe another server" in err


@pytest.mark.skipif(os.name != "posix", reason="modes")
def test_a_key_that_others_can_read_starts_nothing(call, trial, tmp_path):
    (tmp_path / "t" / "server" / "tls" / "server.key").chmod(0o644)
    refused(call("server", "t"), "other users can read this private key; run `chmod 600")
    (tmp_path / "t" / "sites" / "site-1" / "node.key").chmod(0o640)
    refused(call("client", "t/sites/site-1"), "other users can read this private key")


def test_a_wrong_setting_is_named_by_every_command(call, trial, tmp_path):
    path = tmp_path / "t" / "server" / "server.toml"
    path.write_text(path.read_text() + "deadlin = 3\n")
    for command in (("server", "t"), ("status", "t")):
        refused(call(*command), "no setting 'deadlin' (did you mean 'deadline'?)")
    path = tmp_path / "t" / "sites" / "site-1" / "site.toml"
    path.write_text(path.read_text().replace("seconds = 600", "seconds = -1"))
    refused(call("client", "t/sites/site-1"), "seconds must be from 1 to")


def test_missing_arguments_are_errors_of_one_line(call):
    for command in ("init", "join", "add", "remove", "server", "client", "up", "down", "task"):
        refused(call(command), f"(see fedran federation {command} --help)")
    refused(call("nonsense"), "No such command 'nonsense'")


def test_a_roster_is_compared_at_the_server_and_pinned_at_the_site(call):
    assert call("init", "s", "--privacy", "secure")[0] == 0
    code, out, _ = call("status", "s", "--json")
    status = json.loads(out)
    assert (code, len(status["roster"].split())) == (0, 10)
    assert all(site["key"] for site in status["sites"])
    assert (
        f"has pinned the roster of 3 sites, fingerprint {status['roster']}"
        in call("check", "s/sites/site-2")[1]
    )
    place = ("--federation", "s", "--client", "site-4", "--server", "127.0.0.1:9443")
    ca = ("--ca", "s/server/tls/ca.crt")
    assert call("join", "new", *place, *ca, "--privacy", "secure")[0] == 0
    code, out, _ = call("add", "s", "new/enrolment.toml")
    assert code == 0
    new = re.search("^roster (.*)$", out, re.M)[1]
    assert new != status["roster"]
    file = ("--roster", "s/server/roster.toml")
    code, out, _ = call("check", "s/sites/site-2", *file)
    assert (code, "NOT pinned" in out, "site-4 NEW" in out) == (1, True, True)
    old = ("--trust", status["roster"])
    refused(call("check", "s/sites/site-2", *file, *old), "fingerprint", new)
    code, out, _ = call("check", "s/sites/site-2", *file, "--trust", new)
    assert (code, out) == (0, f"this site has pinned the roster {new}\n")
    assert "site-4" in call("status", "s/sites/site-2")[1]
    refused(call("init", "x", "--privacy", "secure", "--in-features", "6"), "`classes`")


@pytest.mark.parametrize("command", [c for group in COMMANDS.values() for c in group])
def test_the_help_of_every_command_says_what_it_does(command, call):
    code, out, err = call(command.__name__, "--help")
    assert (code, err) == (0, "")
    assert command.__doc__.splitlines()[0].rstrip(".") in " ".join(out.split())


def test_without_flower_the_error_names_the_package_to_install(call, monkeypatch):
    from fedran.cli import federation

    monkeypatch.setattr(federation, "find_spec", lambda _: None)
    refused(call("init", "t"), "install fedran's extra 'flower'")
