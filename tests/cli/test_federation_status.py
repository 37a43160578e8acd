"""``fedran federation status`` in the terminal."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip("cryptography")

import typer
from typer.testing import CliRunner

from fedran.cli.federation_status import status
from fedran.federation.protocol.lockfile import alone
from fedran.federation.server.events import Logbook

PROGRAM = "import typer; from fedran.cli.federation_status import status; typer.run(status)"


@pytest.fixture
def folder(tmp_path):
    server = tmp_path / "server"
    (server / "state" / "quarantine").mkdir(parents=True)
    (server / "state" / "quarantine" / "site-2@may").write_bytes(b"x")
    (server / "server.toml").write_text('federation = "trial"\nin_features = 6\n')
    (server / "roster.toml").write_text("[clients]\n")
    book = Logbook(server / "state" / "logbook.jsonl")
    told = {"asked": ["site-1", "site-2", "site-3"], "min_clients": 2, "deadline": 600.0}
    book.write("task", task="may", state="open", **told)
    known = {"task": "may", "verified": True, "bytes": 3000, "rows": 9, "reason": ""}
    classes = [["[red]cat", 5], *([n, 1] for n in range(20))]
    known |= {"outcome": "accepted", "classes": classes, "digest": "a"}
    book.write("upload", client="site-1", **known)
    loud = {"outcome": "quarantined", "digest": "b", "reason": "too loud"}
    book.write("upload", client="site-2", **{**known, **loud})
    book.write("declined", client="site-3", task="may", reason="[bold]nothing\x1b[31m yet")
    book.write("head", task="may", classes=21, bytes=9, digest="d", accuracy=0.9345)
    for n in range(12):
        bad = {"outcome": "refused", "verified": False, "reason": f"signature {n}"}
        book.write("upload", client="site-1", **{**known, **bad})
    with alone(server / "state", task="may"):
        yield tmp_path


def call(*arguments):
    app = typer.Typer()
    app.command()(status)
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "80"})


def test_the_terminal_shows_it_within_80_columns(folder):
    out = call(folder).output
    for words in (
        "server not running",
        "21 classes, after task may",
        "accuracy 93.5 %",
        "Task may is open: 2 of 3 sites answered, at least 2 needed, 9 min left",
        "answered: site-1, site-2 (quarantined)",
        r"site-3 has nothing to send: [bold]nothing\x1b[31m yet (not signed)",
        "site-1 not in roster",
        "[red]cat (5), 0 (1), 1 (1)",
        "and 13 more",
        "too loud",
        "site-1 (unsigned), task may",
        "and 5 more; --json has all",
    ):
        assert words in " ".join(out.split())
    assert f"fedran federation accept {folder} site-2 may\n" in out
    assert "\x1b" not in out
    lines = [line for line in out.splitlines() if str(folder) not in line]
    assert max(map(len, lines)) <= 80


def test_json_has_the_same(folder):
    found = json.loads(call(folder / "server", "--json").output)
    assert found["waiting"][0]["reason"] == "too loud"
    assert found["head"]["accuracy"] == 0.9345
    assert [s["client"] for s in found["sites"]] == ["site-1", "site-2"]


def test_a_wrong_call_is_one_sentence(folder):
    assert "not both" in str(call(folder, "--json", "--web").exception)
    assert "no server.toml here" in str(call(folder / "elsewhere").exception)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_the_page_is_served_until_it_is_stopped(folder):
    command = [sys.executable, "-u", "-c", PROGRAM, str(folder), "--web", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            url = program.stdout.readline().split()[0]
            assert url.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(url, timeout=20) as reply:
                assert "Task may is open" in reply.read().decode()
            program.send_signal(signal.SIGINT)
            assert program.wait(20) == 0
        finally:
            program.kill()
