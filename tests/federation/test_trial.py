"""A trial on one machine: what it says when it cannot be brought up or down."""

import subprocess
import sys

import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.federation.ops import flower
from fedran.federation.ops import trial as module
from fedran.federation.ops.scaffold import Trial, make_trial
from fedran.federation.ops.trial import bring_down, bring_up, start, started
from fedran.federation.protocol.lockfile import locked


@pytest.fixture
def folder(tmp_path):
    make_trial(tmp_path / "trial", Trial(n_sites=1, in_features=6))
    return tmp_path / "trial"


def test_what_is_no_trial_is_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no server\.toml here or in server/"):
        bring_up(tmp_path, insecure=False, say=print)
    make_trial(tmp_path / "alone", Trial(n_sites=0, in_features=6))
    with pytest.raises(FileNotFoundError, match="no sites; `fedran federation server` runs alone"):
        bring_up(tmp_path / "alone", insecure=False, say=print)


def test_the_last_words_of_a_program_that_ended_are_told(folder):
    site = folder / "sites" / "site-1"
    (site / "node.key").chmod(0o644)
    process = start("client", site, insecure=False)
    with pytest.raises(Refused, match="expected one that runs, got fedran: ") as caught:
        started(process, site)
    assert "run `chmod 600" in str(caught.value)
    process.wait(5)


def test_a_program_that_says_nothing_is_told_too(tmp_path):
    process = subprocess.Popen(["true"])
    with pytest.raises(Refused, match="got nothing in its log"):
        started(process, tmp_path)
    process.wait(5)
    with pytest.raises(Refused, match="expected one that runs"):
        started(None, tmp_path)


def test_what_runs_is_not_started_again(folder):
    with locked(folder / "server" / "log"):
        assert start("server", folder / "server", insecure=False) is None
        started(None, folder / "server")


def test_a_server_that_does_not_come_is_told_with_its_last_line(folder, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    monkeypatch.setattr(module, "PATIENCE_SITE", 0.0)
    monkeypatch.setattr(flower, "listening", lambda _: False)
    (folder / "server" / "log").mkdir()
    (folder / "server" / "log" / "fedran.log").write_text("first\nSuperLink ended with code 1\n\n")
    with (
        locked(folder / "server" / "log"),
        pytest.raises(TimeoutError, match=r"the server: not there in time; see .*ended with"),
    ):
        bring_up(folder, insecure=False, say=print)


def test_flower_that_does_not_answer_at_once_is_asked_again(folder, monkeypatch):
    answers = iter([Refused("flwr", "an answer", "none"), [{"status": "online"}]])

    def ask(*_):
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return {"nodes": found}

    monkeypatch.setattr(flower, "ask", ask)
    monkeypatch.setattr(flower, "listening", lambda _: True)
    with locked(folder / "server" / "log"), locked(folder / "sites" / "site-1" / "log"):
        bring_up(folder, insecure=True, say=lambda _: None)


def test_where_nothing_runs_nothing_is_ended(folder, tmp_path):
    said = []
    for place in (folder, folder / "server"):
        assert bring_down(place, say=said.append) == []
    with pytest.raises(FileNotFoundError, match="none: no such folder"):
        bring_down(tmp_path / "none", say=said.append)
    assert said == []


def test_what_runs_is_ended_by_name(folder):
    program = (
        "import signal, sys, time; from pathlib import Path\n"
        "from fedran.federation.protocol.lockfile import locked\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "with locked(Path(sys.argv[1])):\n    print('up', flush=True); time.sleep(60)"
    )
    log = folder / "sites" / "site-1" / "log"
    said = []
    with subprocess.Popen(
        [sys.executable, "-c", program, str(log)], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout.readline() == b"up\n"
            assert bring_down(folder, say=said.append) == ["site-1"]
            assert process.wait(10) == 0
        finally:
            process.kill()
    assert said == ["ended: site-1"]
