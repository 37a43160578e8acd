"""The status page: in a real browser it refreshes itself and runs nothing hostile."""

import html
import re
import shutil
import sqlite3
import subprocess
from contextlib import suppress

import pytest

pytest.importorskip("flwr")

from fedran.federation.status.reader import Reader
from fedran.federation.status.web import render_page
from helpers.federation.status_page import request, serving

CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--virtual-time-budget=9000",
)
HOSTILE = "\"'><script>document.title='hacked'</script><img src=x onerror=document.title='hacked'>"


def make_hostile(federation):
    federation.task(HOSTILE, asked=[HOSTILE, "site-1"])
    federation.task("may", asked=["site-1", "site-2", HOSTILE, HOSTILE + "2"])
    federation.events.write("declined", client=HOSTILE, task="may", reason=HOSTILE)
    federation.upload(HOSTILE, HOSTILE, classes=[[HOSTILE, 3]])
    federation.upload(HOSTILE, "may", "refused", verified=False, reason=HOSTILE)
    federation.upload("site-2", "june", "quarantined", reason=HOSTILE)
    federation.quarantine("site-2", "june", HOSTILE)
    federation.events.write("declined", client="site-1", task=HOSTILE, reason=HOSTILE)
    federation.head(HOSTILE, digest=HOSTILE)
    federation.database.set_run(HOSTILE, HOSTILE, HOSTILE, 9, 0)


def test_text_from_other_machines_is_escaped(open_task):
    make_hostile(open_task)
    text = render_page(Reader(open_task.folder).read()).decode()
    assert "<script>document" not in text
    assert "<img" not in text
    assert text.count("<script>") == 1
    assert HOSTILE not in text
    assert html.unescape(text).count(HOSTILE) > 8
    assert f"<pre>fedran federation accept {open_task.folder} site-2 june</pre>" in text


def chromium(tmp_path, *arguments):
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, timeout=300, check=True).stdout.decode()


class Later(Reader):
    """Something happens at every look after the page was loaded and refreshed once."""

    looks, happens = 0, None

    def read(self, now=None):
        self.looks += 1
        if self.looks > 2:
            self.happens()
        return super().read(now)


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
    assert reader.looks > 2
    assert "zebra" in dom
    assert "2 of 3 sites answered" in dom
    assert re.search(r"<time [^>]*data-at[^>]*title=[^>]*>\d+ s ago</time>", dom)


def test_no_hostile_script_runs(open_task, tmp_path):
    make_hostile(open_task)
    with serving(Reader(open_task.folder)) as server:
        dom = chromium(tmp_path, "--dump-dom", server.url)
    assert "document.title='hacked'" in html.unescape(dom)
    assert "<title>Federation trial" in dom
    assert dom.count("<script>") == 1


def test_the_accuracy_of_all_heads_is_a_line(open_task):
    for n, accuracy in enumerate((0.5, None, 0.75, 0.9)):
        open_task.head(f"task-{n}", accuracy, digest=str(n))
    status = Reader(open_task.folder).read()
    assert [head.accuracy for head in status.history] == [0.5, None, 0.75, 0.9]
    text = render_page(status).decode()
    points = re.search(r'<polyline points="([^"]*)"', text)[1].split()
    assert points == ["0.0,120.0", "300.0,45.0", "600.0,0.0"], "from 50 % to 90 %"


def test_one_head_makes_no_line_and_equal_heads_a_flat_one(open_task):
    open_task.head("may", 1.0, digest="a")
    assert "<polyline" not in render_page(Reader(open_task.folder).read()).decode()
    open_task.head("june", 1.0, digest="b")
    text = render_page(Reader(open_task.folder).read()).decode()
    assert '<polyline points="0.0,0.0 600.0,0.0 "' in text
