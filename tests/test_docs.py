"""README and docs: examples run, links lead somewhere, tables of settings equal the code."""

import re
import runpy
import sys
import tomllib
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import numpy as np
import pytest

import fedran
from fedran.cli.federation import app
from fedran.cli.main import find_commands
from fedran.settings import Settings, at_least, between
from fedran_bench.cli.bench import COMMANDS as BENCH
from fedran_bench.results.result import STUDIES
from fedran_bench.run.config import parse_config
from fedran_bench.run.job import jobs
from helpers.shown_output import assert_same_output

ROOT = Path(__file__).resolve().parent.parent
FILES = ("README.md", "CONTRIBUTING.md", "REPRODUCIBILITY.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in FILES), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.M | re.S)
"""A Python example, and the output that the page shows right below it."""
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "settings_reference.py"))
LINK = re.compile(r"\]\(([^)#:]+?)(?:#[^)]*)?\)")


WITH_EXAMPLES = [  # the pages of the gallery have tests of their own, which compare the output too
    page for page in PAGES if BLOCK.search(page.read_text()) and page.parent.name != "gallery"
]


def run_examples(page):
    """Run the Python blocks of a page one after the other in one namespace.

    Where the page shows an output, it must be what the block prints. Only numbers with a decimal
    point may differ, by 5 %, because another BLAS rounds otherwise.
    """
    blocks = BLOCK.findall(page.read_text())
    assert blocks, f"{page} has no Python example"
    namespace = {}
    for block, shown in blocks:
        with redirect_stdout(StringIO()) as printed:
            exec(compile(block, str(page), "exec"), namespace)
        if shown:
            assert_same_output(printed.getvalue(), shown, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda p: str(p.relative_to(ROOT)))
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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


def message_way(*_):
    Z, y = np.random.default_rng(0).random((60, 8)), ["a", "b"] * 30
    phi = fedran.KernelFeatures(8)
    points = fedran.condense(phi(Z), y, group_size=2, fingerprint=phi.fingerprint)
    server = fedran.Aggregator(fingerprint=phi.fingerprint)
    server.absorb(fedran.decode(fedran.encode(points)), client="a", task="b")
    server.solve().predict(phi(Z))


def estimator_way(*_):
    Z, y = np.random.default_rng(0).random((60, 8)), ["a", "b"] * 30
    a, b = (fedran.FedRANClassifier(out_features=64).fit(Z[i:], y[i:]) for i in (0, 1))
    (a + b).predict_proba(Z)


def secure_way(folder, monkeypatch):
    pytest.importorskip("flwr")
    from helpers.federation.secure_federation import SecureFederation

    SecureFederation(folder, monkeypatch).run("may")


@pytest.mark.parametrize(
    ("heading", "way"),
    [
        ("A message, from rows to labels", message_way),
        ("The estimator", estimator_way),
        ("One secure sum", secure_way),
    ],
)
def test_functions_run_in_the_order_of_the_page(heading, way, tmp_path, monkeypatch):
    shown = steps(heading)
    codes = [getattr(function, "__wrapped__", function).__code__ for function in shown]
    called = {}  # in the order of the first calls

    def note(frame, event, _):
        if event == "call" and frame.f_code in codes:
            called[frame.f_code] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        way(tmp_path, monkeypatch)
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
    modules = {"accumulate", "paper"}
    assert described == {*fedran.__all__} | modules


def test_the_reference_lists_every_command():
    page = (ROOT / "docs/reference/cli.md").read_text()
    cells = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `fedran ")]
    federation = [cell for cell in cells if cell.startswith("| `fedran federation ")]
    bench = {cell.split()[3].strip("`") for cell in cells if cell.startswith("| `fedran bench ")}
    assert bench == {command.__name__ for command in BENCH}
    inside = {name for x in federation for name in re.findall(r"`(?:fedran federation )?(\w+)", x)}
    assert {
        command.name or command.callback.__name__ for command in app.registered_commands
    } == inside
    others = {cell.split()[2].strip("`") for cell in cells if cell not in federation}
    assert others == {*find_commands(), "--version"} - {"federation"}


def test_the_tables_of_settings_are_generated_from_the_code():
    pages = [p for p in (ROOT / "docs").rglob("*.md") if "<!-- settings" in p.read_text()]
    assert ROOT / "docs/reference/configuration.md" in pages
    for page in pages:
        text = page.read_text()
        assert text == SCRIPT["filled"](text), f"run benchmarks/settings_reference.py for {page}"
        assert len(SCRIPT["MARKED"].findall(text)) == text.count("<!-- settings")


@dataclass(frozen=True)
class Base(Settings):
    seed: Annotated[int, between(0, 99)] = 0
    """Seeds the
    generator."""


@dataclass(frozen=True)
class Example(Base):
    name: str = field(kw_only=True)
    rank: Annotated[int | None, at_least(1)] = None
    """Columns kept | all."""
    flag: bool = False
    device: str | None = None


def test_the_reference_holds_every_setting_with_type_default_and_explanation():
    assert SCRIPT["table_of"](Example)[2:] == [
        "| `seed` | an integer, from 0 to 99 | 0 | Seeds the generator. |",
        "| `name` | text | required |  |",
        "| `rank` | an integer, at least 1 | none | Columns kept \\| all. |",
        "| `flag` | true or false | false |  |",
    ]


def test_a_table_can_leave_out_the_settings_of_another_dataclass():
    base = "fedran_bench.methods.trained.method.Finetune"
    lines = SCRIPT["table"]("fedran_bench.methods.trained.fedewc.FedEWC", base)
    names = [line.split("`")[1] for line in lines[2:]]
    assert names == ["weight_decay", "strength"]


def test_every_study_is_documented():
    page = (ROOT / "docs/reference/configuration.md").read_text()
    for name, purpose in STUDIES.items():
        assert page.count(f"| `{name}` | {purpose} |") == 1
