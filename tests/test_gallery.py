"""The pages of the gallery show the code of its scripts and what that code gives."""

import re
import sys
from pathlib import Path

import pytest

from helpers.shown_output import assert_same_output

ROOT = Path(__file__).resolve().parent.parent
GALLERY = ROOT / "docs" / "gallery"

pytest.importorskip("matplotlib")
pytest.importorskip("PIL")
sys.path.insert(0, str(ROOT / "benchmarks"))
try:
    import gallery
finally:
    sys.path.pop(0)


def blocks(name, language):
    page = (GALLERY / f"{name}.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)\n```$", page, re.M | re.S)


def test_every_script_is_in_the_gallery():
    assert sorted(gallery.ORDER) == sorted(path.stem for path in GALLERY.glob("*.py"))
    assert (GALLERY / "index.md").read_text() == gallery.index()


@pytest.mark.parametrize("name", gallery.ORDER)
def test_a_page_has_the_code_and_the_text_of_its_script(name):
    script = gallery.read_script(name)
    assert blocks(name, "python") == [source for kind, source in script.cells if kind == "code"]
    page = (GALLERY / f"{name}.md").read_text()
    for kind, source in script.cells:
        assert kind == "code" or source in page
    assert page.startswith(f"# {script.title}\n")
    assert script.introduction in page


# The federation runs real processes for a minute; its commands are tested in tests/federation.
@pytest.mark.parametrize("name", [name for name in gallery.ORDER if name != "federation"])
def test_a_script_prints_what_its_page_shows(name):
    page = gallery.run_script(gallery.read_script(name))
    printed = [text for text in page.outputs if text]
    shown = blocks(name, "text")
    assert_same_output("\n\n".join(printed), "\n\n".join(shown), rtol=0.05, atol=2.0)
    for file in page.figures:
        assert f"](img/{file})" in (GALLERY / f"{name}.md").read_text()
        assert (GALLERY / "img" / file).stat().st_size < 200_000
