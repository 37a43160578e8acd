"""The status page in a real browser: it refreshes itself, fits the window, runs nothing hostile."""

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
from helpers.status_page import request, serving

CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--virtual-time-budget=9000",
)
HOSTILE = "\"'><script>document.title='hacked'</script><img src=x onerror=document.title='hacked'>"
# A window cannot be narrower than 500 px when the DOM is dumped; a frame can.
PROBE = """<!doctype html><meta charset="utf-8"><body>
<iframe style="width:{width}px; height:900px; border:0" srcdoc="{page}"></iframe><script>
addEventListener("load", () => {{
  const root = document.querySelector("iframe").contentDocument.documentElement;
  document.body.dataset.seen = [root.scrollWidth, root.clientWidth].join(" ");
}});
</script>"""


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
    assert re.search(r"<time [^>]*data-until[^>]*>\d+ s left\.</time>", dom)
    assert re.search(r'<p id="lost"[^>]*hidden', dom)


def test_the_page_says_when_the_server_no_longer_answers(open_task, tmp_path):
    def fails():
        raise OSError("the disk <b>is</b> gone")

    reader = Later(open_task.folder)
    reader.happens = fails
    with serving(reader) as server:
        dom = chromium(tmp_path, "--dump-dom", server.url)
    assert re.search(r'<p id="lost" role="status">No status since [\d:]+', dom)
    assert "the disk &lt;b&gt;is&lt;/b&gt; gone" in dom
    assert "Task may is open" in dom


def test_no_hostile_script_runs(open_task, tmp_path):
    reader = Later(open_task.folder)
    reader.happens = lambda: make_hostile(open_task)
    with serving(reader) as server:
        dom = chromium(tmp_path, "--dump-dom", server.url)
    assert reader.looks > 2
    assert "document.title='hacked'" in html.unescape(dom)
    assert "<title>Federation trial" in dom
    assert "<img" not in dom
    assert dom.count("<script>") == 1


@pytest.mark.parametrize("width", [1200, 400])
def test_the_page_fits_the_window(open_task, tmp_path, width):
    make_hostile(open_task)
    open_task.upload("site-3", "x" * 64, classes=[["W" * 250, 5]])
    open_task.upload("site-3", "z" * 64, "refused", reason="y" * 500)
    text = render_page(Reader(open_task.folder).read()).decode()
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(width=width, page=html.escape(text)), encoding="utf-8")
    dom = chromium(tmp_path, "--window-size=1300,1000", "--dump-dom", probe.as_uri())
    scroll, client = map(int, re.search(r'data-seen="([\d ]+)"', dom)[1].split())
    assert client <= width
    assert scroll <= client


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_renders_in_light_and_dark(open_task, tmp_path, dark):
    image = pytest.importorskip("PIL.Image")
    target = tmp_path / "page.png"
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    with serving(Reader(open_task.folder)) as server:
        chromium(tmp_path, *scheme, "--window-size=400,900", f"--screenshot={target}", server.url)
    with image.open(target) as shot:
        low, high = shot.convert("L").getextrema()
        assert high - low > 150
        assert (shot.convert("L").getpixel((2, 2)) < 60) == dark


def test_the_accuracy_of_all_heads_is_a_line(open_task):
    for n, accuracy in enumerate((0.5, None, 0.75, 0.9)):
        open_task.head(f"task-{n}", accuracy, digest=str(n))
    status = Reader(open_task.folder).read()
    assert [head.accuracy for head in status.history] == [0.5, None, 0.75, 0.9]
    text = render_page(status).decode()
    points = re.search(r'<polyline points="([^"]*)"', text)[1].split()
    assert points == ["0.0,120.0", "300.0,45.0", "600.0,0.0"], "from 50 % to 90 %"
    assert "<title>Federation trial · fedran</title>" in text
    assert text.index("90.0 %") < text.index("on disk")


def test_the_history_keeps_the_heads_of_a_task_that_ran_twice(open_task):
    for n, accuracy in enumerate((0.5, 0.6)):
        open_task.head("may", accuracy, digest=str(n))
    status = Reader(open_task.folder).read()
    assert [(head.task, head.accuracy) for head in status.history] == [("may", 0.5), ("may", 0.6)]


def test_one_head_makes_no_line_and_equal_heads_a_flat_one(open_task):
    open_task.head("may", 1.0, digest="a")
    assert "<polyline" not in render_page(Reader(open_task.folder).read()).decode()
    open_task.head("june", 1.0, digest="b")
    text = render_page(Reader(open_task.folder).read()).decode()
    assert '<polyline points="0.0,0.0 600.0,0.0 "' in text
