"""Every Python example in the README and the docs runs as it stands, page by page."""

import re
import sys
import tomllib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest

import fedran
from fedran.cli.federation import app
from fedran.cli.main import find_commands
from fedran_bench.cli.bench import COMMANDS as BENCH
from fedran_bench.run.config import parse_config
from fedran_bench.run.job import jobs

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "REPRODUCIBILITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.M | re.S)
"""A Python example, and the output that the page shows right below it."""
NUMBER = re.compile(r"\d+(?:\.\d+)?")
LINK = re.compile(r"\]\(([^)#:]+?)(?:#[^)]*)?\)")


WITH_EXAMPLES = [  # the pages of the gallery have tests of their own, which compare the output too
    page for page in PAGES if BLOCK.search(page.read_text()) and page.parent.name != "gallery"
]


def run_examples(page):
    """Run the Python blocks of a page one after the other in one namespace.

    Where the page shows an output, it must be what the block prints. Numbers may differ by 5 %,
    because another BLAS rounds otherwise.
    """
    blocks = BLOCK.findall(page.read_text())
    assert blocks, f"{page} has no Python example"
    namespace = {}
    for block, shown in blocks:
        with redirect_stdout(StringIO()) as printed:
            exec(compile(block, str(page), "exec"), namespace)
        if shown:
            assert NUMBER.sub("#", printed.getvalue()) == NUMBER.sub("#", shown)
            now, then = (NUMBER.findall(text) for text in (printed.getvalue(), shown))
            np.testing.assert_allclose(np.float64(now), np.float64(then), rtol=0.05, atol=0.01)


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda p: str(p.relative_to(ROOT)))
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_examples(page)


def test_a_page_with_a_broken_example_another_output_or_none_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError):
        run_examples(page)
    for output in ("3", "2 rows"):
        page.write_text(f"```python\nprint(1 + 1)\n```\n\n```text\n{output}\n```\n")
        with pytest.raises(AssertionError):
            run_examples(page)
    page.write_text("Text without an example.\n")
    with pytest.raises(AssertionError, match="has no Python example"):
        run_examples(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = [t for t in LINK.findall(page.read_text()) if not t.startswith("http")]
    missing = [t for t in targets if not (page.parent / t).exists()]
    assert not missing


def test_every_dotted_name_on_a_page_exists():
    for page in PAGES:
        for name in re.findall(r"`(fedran(?:_bench)?(?:\.\w+)+)`", page.read_text()):
            try:
                resolve_name(name)
            except (ImportError, AttributeError) as reason:
                pytest.fail(f"{page.relative_to(ROOT)} names {name}: {reason}")


def steps(heading):
    """The functions of the numbered lines below a heading of the page on architecture."""
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    return [resolve_name(name) for name in re.findall(r"^\d+\. `([\w.]+)`", section, re.M)]


def message_way(Z, y):
    phi = fedran.RandomFeatures(8, 64)
    summary = fedran.summarize(phi(Z), y, rank=4, fingerprint=phi.fingerprint)
    server = fedran.Aggregator(out_features=64, fingerprint=phi.fingerprint)
    server.absorb(fedran.decode(fedran.encode(summary)), client="a", task="b")
    server.solve().predict(phi(Z))


def estimator_way(Z, y):
    a, b = (fedran.FedRANClassifier(out_features=64).fit(Z[i::2], y[i::2]) for i in (0, 1))
    (a + b).predict_proba(Z)


@pytest.mark.parametrize(
    ("heading", "way"),
    [("A message, from rows to labels", message_way), ("The estimator", estimator_way)],
)
def test_functions_run_in_the_order_of_the_page(heading, way):
    shown = steps(heading)
    codes = [getattr(function, "__wrapped__", function).__code__ for function in shown]
    called = {}  # in the order of the first calls

    def note(frame, event, _):
        if event == "call" and frame.f_code in codes:
            called[frame.f_code] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        way(np.random.default_rng(0).random((60, 8)), ["a", "a", "b", "b"] * 15)
    finally:
        sys.setprofile(before)
    assert [code.co_qualname for code in called] == [code.co_qualname for code in codes]


def test_named_tests_exist():
    there = {""}
    for path in (ROOT / "tests").rglob("test_*.py"):
        there.add(path.name)
        there.update(
            f"{path.name}::{x}" for x in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
        )
    for page in PAGES:
        named = re.findall(r"`[\w/]*?(test_\w+\.py(?:::\w+)?)`", page.read_text())
        assert {*named} <= there, page


def test_the_documented_experiment_is_one():
    page = (ROOT / "docs/reference/configuration.md").read_text()
    (block,) = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    experiment = parse_config(tomllib.loads(block))
    assert len(jobs(experiment)) == 4 * 2 + 2


def test_the_reference_describes_every_public_name():
    pages = "\n".join(path.read_text() for path in (ROOT / "docs/reference/api").glob("*.md"))
    described = set(re.findall(r"^::: fedran\.(\w+)$", pages, re.M))
    assert described == {*fedran.__all__} | {"paper"}


def test_the_reference_lists_every_command():
    page = (ROOT / "docs/reference/cli.md").read_text()
    cells = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `fedran ")]
    federation = [cell for cell in cells if cell.startswith("| `fedran federation ")]
    bench = {cell.split()[3].strip("`") for cell in cells if cell.startswith("| `fedran bench ")}
    assert bench == {*BENCH}
    inside = {name for x in federation for name in re.findall(r"`(?:fedran federation )?(\w+)", x)}
    assert {
        command.name or command.callback.__name__ for command in app.registered_commands
    } == inside
    others = {cell.split()[2].strip("`") for cell in cells if cell not in federation}
    assert others == {*find_commands(), "--version"} - {"federation"}


def test_the_pages_that_teach_have_examples():
    shown = {str(page.relative_to(ROOT)) for page in WITH_EXAMPLES}
    assert {"README.md", "docs/tutorial.md", "docs/how-to/estimator.md"} <= shown
    assert len(shown) >= 5
