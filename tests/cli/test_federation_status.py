"""``fedran federation status``: text, JSON or a page."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip("flwr")

from helpers.federation.recorded_federation import RecordedFederation

LIMIT = 300
"""Seconds for a step of another process, on a machine that is busy with other tests."""


@pytest.fixture
def folder(tmp_path):
    recorded = RecordedFederation(tmp_path / "trial")
    recorded.task("may")
    recorded.upload("site-1", "may")
    with recorded.task_running("may"):
        yield recorded.folder


def test_status_prints_text_or_json(cli, folder):
    code, out, err = cli("federation", "status", str(folder))
    assert (code, err) == (0, "")
    assert "Task may is open: 1 of 3 sites answered" in out
    code, out, err = cli("federation", "status", str(folder / "server"), "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [t["task"] for t in found["tasks"]] == ["may"]
    assert [s["client"] for s in found["sites"]] == ["site-1", "site-2", "site-3"]


def test_options_that_exclude_each_other_are_an_error(cli, folder):
    for options in (("--json", "--web"), ("--json", "--metrics", "-")):
        code, out, err = cli("federation", "status", str(folder), *options)
        assert (code, out, "exclude each other" in err) == (2, "", True)


def test_metrics_are_printed_or_written_without_a_page(cli, folder, tmp_path):
    code, printed, _ = cli("federation", "status", str(folder), "--metrics", "-")
    assert (code, "\nfedran_open_tasks 1\n" in printed) == (0, True)
    path = tmp_path / "fedran.prom"
    code, out, _ = cli("federation", "status", str(folder), "--metrics", str(path))
    assert (code, out) == (0, "")
    assert path.read_text().splitlines()[0] == printed.splitlines()[0]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_the_page_is_served_until_it_is_stopped(folder):
    command = [sys.executable, "-um", "fedran", "federation", "status", str(folder)]
    with subprocess.Popen(
        [*command, "--web", "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            url = program.stdout.readline().split()[0]
            assert url.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(url, timeout=LIMIT) as reply:
                assert "Task may is open" in reply.read().decode()
            program.send_signal(signal.SIGINT)
            assert program.wait(LIMIT) == 0
        finally:
            program.kill()
