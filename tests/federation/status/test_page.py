"""The status page: for this machine only, read-only, and safe in a real browser."""

import html
import json
import re
import shutil
import sqlite3
import subprocess
from contextlib import suppress

import pytest

pytest.importorskip("flwr")

from fedran.federation.status.metrics import render_metrics
from fedran.federation.status.model import TaskStatus
from fedran.federation.status.reader import Reader
from fedran.federation.status.web import StatusServer, render
from helpers.federation.status_page import request, serving

CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--virtual-time-budget=9000",
)
HOSTILE = "\"'><script>document.title='hacked'</script><img src=x onerror=document.title='hacked'>"
LINE = re.compile(
    r'fedran_[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\.)*"(,[a-z]+="(?:[^"\\\n]|\\.)*")*\})? '
    r"-?[0-9.]+(e[+-]?[0-9]+)?"
)


def test_the_page_its_sections_and_the_json_show_the_same_state(open_task):
    with serving(Reader(open_task.folder)) as server:
        assert server.server_address[0] == "127.0.0.1"
        code, body, headers = request(server)
        assert (code, "Task may is open" in body, "cat" in body) == (200, True, True)
        assert headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert not re.search(r"(src|href)\s*=\s*[\"']?\s*(https?:)?//", body)
        for asset in re.findall(r'"(page\.[a-z]+)"', body):
            assert request(server, f"/{asset}")[0] == 200
        assert "Task may is open" in request(server, "/sections")[1]
        status = server.reader.read()
        assert render("/sections", status) in render("/", status)
        found = json.loads(request(server, "/status.json")[1])
        answers = {"site-1": "accepted", "site-2": "missing", "site-3": "missing"}
        assert (found["tasks"][0]["answers"], found["running"]) == (answers, True)
        with pytest.raises(OSError, match="--port 0"):
            StatusServer(Reader(open_task.folder), server.server_address[1])


def test_only_get_requests_to_this_host_for_known_paths_are_answered(open_task):
    with serving(Reader(open_task.folder)) as server:
        for host in ("evil.example:8765", "127.0.0.1.evil.example", "", None, "[::1]"):
            code, body, _ = request(server, host=host)
            assert (code, "site-1" in body) == (403, False)
        assert request(server, headers=[("Host", "evil.example")])[0] == 403
        assert request(server, host="localhost:9000")[0] == 200
        for method in ("POST", "DELETE", "OPTIONS", "HEAD"):
            assert request(server, method=method)[0] == 501
        for path in ("/../server.toml", "/%2e%2e/server.toml", "/state/store.db", "/?x", "*"):
            code, body, _ = request(server, path)
            assert (code, "federation" in body) == (404, False)


def test_every_metric_has_a_declared_type_and_what_is_unknown_is_left_out(open_task):
    with serving(Reader(open_task.folder)) as server:
        _, body, headers = request(server, "/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    declared = set(re.findall(r"^# TYPE (\S+) (?:gauge|counter)$", body, re.M))
    samples = [line for line in body.splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in samples), samples
    assert {re.match("[a-z_]+", line)[0] for line in samples} <= declared
    assert {"fedran_up 1", "fedran_open_tasks 1"} <= set(samples)
    assert 'fedran_site_connected{site="site-1"} 1' in samples
    assert 'fedran_task_missing{task="may",state="open"} 2' in samples
    status = Reader(open_task.folder).read()
    odd = TaskStatus(**{**vars(status.tasks[0]), "state": 'a"b\\c\nd'})
    body = render_metrics(type(status)(**{**vars(status), "sites": [], "tasks": [odd]})).decode()
    assert "\nfedran_nodes " not in body
    assert r'state="a\"b\\c\nd"' in body


def make_hostile(federation):
    federation.task(HOSTILE, asked=[HOSTILE, "site-1"])
    federation.task("may", asked=["site-1", "site-2", HOSTILE, HOSTILE + "2"])
    federation.events.write("declined", client=HOSTILE, task="may", reason=HOSTILE)
    federation.upload(HOSTILE, HOSTILE, classes=[[HOSTILE, 3]])
    federation.upload(HOSTILE, "may", "refused", verified=False, reason=HOSTILE)
    federation.events.write("declined", client="site-1", task=HOSTILE, reason=HOSTILE)
    federation.head(HOSTILE, digest=HOSTILE)
    aside = {"client": HOSTILE, "label": HOSTILE, "waits": False, "reason": HOSTILE}
    federation.database.set_fact("judged", json.dumps({"set_aside": [aside]}))
    federation.database.set_run(HOSTILE, HOSTILE, HOSTILE, 9, 0)


def chromium(tmp_path, *arguments):
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, timeout=300, check=True).stdout.decode()


def test_text_from_other_machines_is_escaped_and_does_not_run(open_task, tmp_path):
    make_hostile(open_task)
    with serving(Reader(open_task.folder)) as server:
        text = request(server)[1]
        assert "<script>document" not in text
        assert "<img" not in text
        assert html.unescape(text).count(HOSTILE) > 8
        assert f"<pre>fedran federation accept {open_task.folder} " in text
        dom = chromium(tmp_path, "--dump-dom", server.url)
    assert "document.title='hacked'" in html.unescape(dom)
    assert "<title>Federation trial" in dom


class Later(Reader):
    """Something happens at every look after the page was loaded and refreshed once."""

    looks, happens = 0, None

    def read(self):
        self.looks += 1
        if self.looks > 2:
            self.happens()
        return super().read()


def test_the_page_refreshes_itself(open_task, tmp_path):
    reader = Later(open_task.folder)

    def happens():
        with suppress(sqlite3.IntegrityError):  # it has happened before
            open_task.upload("site-2", "may", classes=[["zebra", 12]])

    reader.happens = happens
    with serving(reader) as server:
        assert "zebra" not in request(server)[1]
        reader.looks = 0
        dom = chromium(tmp_path, "--dump-dom", server.url)
    assert "zebra" in dom
    assert "2 of 3 sites answered" in dom
    assert re.search(r"<time [^>]*data-at[^>]*title=[^>]*>\d+ s ago</time>", dom)


def test_the_accuracy_of_all_heads_is_a_line(open_task):
    for n, accuracy in enumerate((1.0, 1.0, None)):
        assert b"<polyline" not in render("/", Reader(open_task.folder).read()) or n == 2
        open_task.head(f"task-{n}", accuracy, digest=str(n))
    for n, accuracy in enumerate((0.7, 0.5), 3):
        open_task.head(f"task-{n}", accuracy, digest=str(n))
    status = Reader(open_task.folder).read()
    assert [head.accuracy for head in status.history] == [1.0, 1.0, None, 0.7, 0.5]
    points = re.search(r'<polyline points="([^"]*)"', render("/", status).decode())[1].split()
    assert points == ["0.0,0.0", "200.0,0.0", "400.0,72.0", "600.0,120.0"], "from 50 % to 100 %"
