"""The page: for this machine only, foreign words stay words, it refreshes in a real browser."""

import html
import http.client
import json
import re
import shutil
import subprocess
import threading
from contextlib import contextmanager

import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.federation.status.page import page, policy
from fedran.federation.status.reader import Reader
from fedran.federation.status.web import StatusServer
from helpers.made_status import Made

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


@pytest.fixture
def made(tmp_path):
    found = Made(tmp_path / "trial")
    found.task("may")
    found.upload("site-1", "may")
    found.flower([("site-1", "online", None)])
    with found.at_work("may"), found.running():
        yield found


def make_hostile(made):
    made.task(HOSTILE, asked=[HOSTILE, "site-1"])
    made.task("may", asked=["site-1", "site-2", HOSTILE, HOSTILE + "2"])
    made.book.write("declined", client=HOSTILE, task="may", reason=HOSTILE)
    made.upload(HOSTILE, HOSTILE, classes=[[HOSTILE, 3]])
    made.upload(HOSTILE, "may", "refused", verified=False, reason=HOSTILE)
    made.upload("site-2", "june", "quarantined", reason=HOSTILE)
    (made.state / "quarantine").mkdir(exist_ok=True)
    (made.state / "quarantine" / "site-2@june").touch()
    made.book.write("declined", client="site-1", task=HOSTILE, reason=HOSTILE)
    made.book.write("head", task=HOSTILE, classes=1, bytes=9, digest=HOSTILE, accuracy=0.5)
    made.book.write("run", task=HOSTILE, run_id=HOSTILE, status=HOSTILE, transport=9)


@contextmanager
def serving(reader):
    with StatusServer(reader) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path="/", method="GET", host="127.0.0.1", headers=()):
    link = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    link.putrequest(method, path, skip_host=True)
    for name, value in (*([("Host", host)] if host else []), *headers):
        link.putheader(name, value)
    link.endheaders()
    reply = link.getresponse()
    body = reply.read().decode()
    link.close()
    return reply.status, body, reply.headers


def test_it_shows_what_there_is(made):
    with serving(Reader(made.folder)) as server:
        assert server.server_address[0] == "127.0.0.1"
        code, body, headers = ask(server)
        assert code == 200
        for words in ("Task may is open", "1 of 3 sites answered", "site-1", "cat"):
            assert words in body
        assert headers["Content-Security-Policy"] == policy()
        assert "unsafe" not in policy()
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert not re.search(r"(src|href)\s*=\s*[\"']?\s*(https?:)?//", body)
        assert ask(server, "/sections")[1] in body
        found = json.loads(ask(server, "/status.json")[1])
        assert found["tasks"][0]["missing"] == ["site-2", "site-3"]
        assert found["server"] == "running"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", None, "[::1]"]
)
def test_another_name_that_leads_here_is_refused(host, made):
    with serving(Reader(made.folder)) as server:
        code, body, _ = ask(server, host=host)
        assert (code, "site-1" in body) == (403, False)
        twice = ask(server, host="127.0.0.1", headers=[("Host", "evil.example")])
        assert twice[0] == 403
        assert ask(server, host="localhost:9000")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"])
def test_it_can_only_be_read(method, made):
    with serving(Reader(made.folder)) as server:
        assert ask(server, method=method)[0] == 501


@pytest.mark.parametrize(
    "path", ["/server.toml", "/../server.toml", "/%2e%2e/server.toml", "/state/journal", "/?x", "*"]
)
def test_there_are_three_addresses_and_no_files(path, made):
    with serving(Reader(made.folder)) as server:
        code, body, _ = ask(server, path)
        assert (code, "federation" in body) == (404, False)


def test_a_port_in_use_is_said(made):
    with serving(Reader(made.folder)) as server, pytest.raises(Refused, match="--port 0 takes any"):
        StatusServer(Reader(made.folder), server.server_address[1])


def test_foreign_words_are_escaped(made):
    make_hostile(made)
    text = page(Reader(made.folder).read()).decode()
    assert "<script>document" not in text
    assert "<img" not in text
    assert text.count("<script>") == 1
    assert text.count(html.escape(HOSTILE)) > 8
    assert f"<pre>fedran federation accept {made.folder} site-2 june</pre>" in text


def chromium(tmp_path, *arguments):
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, timeout=120, check=True).stdout.decode()


class Later(Reader):
    """Something happens at every look after the page was loaded and refreshed once."""

    looks, happens = 0, None

    def read(self, now=None):
        self.looks += 1
        if self.looks > 2:
            self.happens()
        return super().read(now)


def test_it_refreshes_itself(made, tmp_path):
    reader = Later(made.folder)
    reader.happens = lambda: made.upload("site-2", "may", classes=[["zebra", 12]])
    with serving(reader) as server:
        assert "zebra" not in ask(server)[1]
        reader.looks = 0
        dom = chromium(tmp_path, "--dump-dom", server.url)
    assert reader.looks > 2
    assert "zebra" in dom
    assert "2 of 3 sites answered" in dom
    assert re.search(r"<time [^>]*data-at[^>]*title=[^>]*>\d+ s ago</time>", dom)
    assert re.search(r"<time [^>]*data-until[^>]*>\d+ s left\.</time>", dom)
    assert re.search(r'<p id="lost"[^>]*hidden', dom)


def test_it_says_when_the_server_no_longer_answers(made, tmp_path):
    def fails():
        raise OSError("the disk <b>is</b> gone")

    reader = Later(made.folder)
    reader.happens = fails
    with serving(reader) as server:
        dom = chromium(tmp_path, "--dump-dom", server.url)
    assert re.search(r'<p id="lost" role="status">Server not answering since [\d:]+', dom)
    assert "the disk &lt;b&gt;is&lt;/b&gt; gone" in dom
    assert "Task may is open" in dom


def test_nothing_hostile_runs(made, tmp_path):
    reader = Later(made.folder)
    reader.happens = lambda: make_hostile(made)
    with serving(reader) as server:
        dom = chromium(tmp_path, "--dump-dom", server.url)
    assert reader.looks > 2
    assert "document.title='hacked'" in html.unescape(dom)
    assert "<title>trial" in dom
    assert "<img" not in dom
    assert dom.count("<script>") == 1


@pytest.mark.parametrize("width", [1200, 400])
def test_it_fits_the_window(made, tmp_path, width):
    make_hostile(made)
    made.upload("site-3", "x" * 64, classes=[["W" * 250, 5]], reason="y" * 500)
    made.upload("site-3", "z" * 64, "refused", reason="y" * 500)
    text = page(Reader(made.folder).read()).decode()
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(width=width, page=html.escape(text)), encoding="utf-8")
    dom = chromium(tmp_path, "--window-size=1300,1000", "--dump-dom", probe.as_uri())
    scroll, client = map(int, re.search(r'data-seen="([\d ]+)"', dom)[1].split())
    assert client <= width
    assert scroll <= client


@pytest.mark.parametrize("dark", [False, True])
def test_it_renders_in_light_and_dark(made, tmp_path, dark):
    image = pytest.importorskip("PIL.Image")
    target = tmp_path / "page.png"
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    with serving(Reader(made.folder)) as server:
        chromium(tmp_path, *scheme, "--window-size=400,900", f"--screenshot={target}", server.url)
    with image.open(target) as shot:
        low, high = shot.convert("L").getextrema()
        assert high - low > 150
        assert (shot.convert("L").getpixel((2, 2)) < 60) == dark
