"""The HTML pages in a browser: they render, fit any window, are not long, and load nothing."""

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedran.bench.report.build import html_page, load_results
from fedran.bench.report.leakage import read_leakage
from fedran.bench.report.pages import make_pages

pytest.importorskip("matplotlib")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
TALLEST = 8000
# A window cannot be narrower than 500 px when the DOM is dumped; a frame can.
FRAME = '<iframe style="width:{width}px; height:900px; border:0" srcdoc="{page}"></iframe>'
PROBE = """<!doctype html><meta charset="utf-8"><body>{frames}<script>
addEventListener("load", () => {{
  document.body.dataset.seen = [...document.querySelectorAll("iframe")].map((frame) => {{
    const inner = frame.contentDocument, root = inner.documentElement;
    const height = inner.body.scrollHeight;
    inner.querySelectorAll("details").forEach((d) => (d.open = true));
    const loaded = frame.contentWindow.performance.getEntriesByType("resource").length;
    const drawn = [...inner.querySelectorAll("svg")].filter((s) => s.clientWidth > 300).length;
    const boxes = [...inner.querySelectorAll("body *")].filter(
      (e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX != "visible"
        && !e.closest("svg")).length;
    return [height, root.scrollWidth, root.clientWidth, loaded, drawn, boxes].join(" ");
  }}).join(";");
}});
</script>"""


@pytest.fixture(scope="module")
def page(full_report, tmp_path_factory):
    return full_report.write(tmp_path_factory.mktemp("report"))


def measured(tmp_path, texts, width):
    """For each page: height, width needed, width given, files loaded, drawings, scroll boxes."""
    frames = "".join(FRAME.format(width=width, page=html.escape(text)) for text in texts)
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(frames=frames), encoding="utf-8")
    dom = chromium(tmp_path, "--window-size=1300,1000", "--dump-dom", probe.as_uri()).decode()
    seen = re.search(r'data-seen="([\d ;]+)"', dom)[1]
    return [tuple(map(int, numbers.split())) for numbers in seen.split(";")]


def chromium(tmp_path, *arguments):
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, timeout=120, check=True).stdout


@pytest.mark.parametrize("width", [1280, 400])
def test_every_page_fits_the_window_and_loads_nothing(full_report, tmp_path, width):
    texts = list(full_report.pages.values())
    for text, found in zip(texts, measured(tmp_path, texts, width), strict=True):
        height, needed, given, loaded, drawn, boxes = found
        assert given == width
        assert needed <= given
        assert (loaded, boxes) == (0, 0)
        assert drawn == text.count("<svg") - text.count('class="narrow"')
        assert height <= TALLEST or width < 1280


def test_no_page_of_the_repositorys_results_is_too_tall_or_too_wide(tmp_path):
    folder = Path(__file__).parents[3] / "results"
    results = load_results(folder)
    pages = make_pages(results, "results", read_leakage(folder))
    # The figures take their place empty: drawing all of them would take a minute.
    texts = [html_page(p, pages, results, "results", _empty_drawings(p)) for p in pages]
    for page, found in zip(pages, measured(tmp_path, texts, 1280), strict=True):
        height, needed, given, *_ = found
        assert height <= TALLEST, page.title
        assert needed <= given, page.title


def _empty_drawings(page):
    sizes = {c.slug: c.size for s in page.sections for c in s.charts}
    return {
        slug: f'<svg viewBox="0 0 {72 * width:g} {72 * height:g}"></svg>'
        for name, (width, height) in sizes.items()
        for slug in (name, f"{name}-narrow")
    }


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
