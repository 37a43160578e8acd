"""The HTML page in a browser: it renders, fits narrow windows and loads nothing."""

import html
import re
import shutil
import subprocess

import pytest

pytest.importorskip("matplotlib")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# A window cannot be narrower than 500 px when the DOM is dumped; a frame can.
PROBE = """<!doctype html><meta charset="utf-8"><body>
<iframe style="width:{width}px; height:900px; border:0" srcdoc="{page}"></iframe><script>
const frame = document.querySelector("iframe");
addEventListener("load", () => {{
  const inner = frame.contentDocument, root = inner.documentElement;
  inner.querySelectorAll("details").forEach((d) => (d.open = true));
  const loaded = frame.contentWindow.performance.getEntriesByType("resource").length;
  const drawn = [...inner.querySelectorAll("svg")].filter((s) => s.clientWidth > 300).length;
  document.body.dataset.seen = [root.scrollWidth, root.clientWidth, loaded, drawn].join(" ");
}});
</script>"""


@pytest.fixture(scope="module")
def page(full_report, tmp_path_factory):
    return full_report.write(tmp_path_factory.mktemp("report"))


def chromium(tmp_path, *arguments):
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, timeout=120, check=True).stdout


@pytest.mark.parametrize("width", [1200, 400])
def test_the_page_fits_the_window_and_loads_nothing(page, tmp_path, width):
    text = page.read_text(encoding="utf-8")
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(width=width, page=html.escape(text)), encoding="utf-8")
    dom = chromium(tmp_path, "--window-size=1300,1000", "--dump-dom", probe.as_uri()).decode()
    scroll, client, loaded, drawn = map(int, re.search(r'data-seen="([\d ]+)"', dom)[1].split())
    assert client == width
    assert scroll <= client
    assert loaded == 0
    assert drawn == text.count("<svg") - text.count('class="narrow"')


@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_renders_in_light_and_dark_mode(page, tmp_path, width, dark):
    from PIL import Image

    target = tmp_path / "page.png"
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    size = f"--window-size={width},1600"
    chromium(tmp_path, *scheme, size, f"--screenshot={target}", page.as_uri())
    with Image.open(target) as image:
        assert image.size == (width, 1600)
        pixels = image.convert("L")
        low, high = pixels.getextrema()
        assert high - low > 150
        assert (pixels.getpixel((2, 2)) < 60) == dark
        assert len(image.convert("RGB").getcolors(1 << 20)) > 50
