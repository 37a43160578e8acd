"""Every Python example in the README and the docs runs as it stands, page by page."""

import re
import tomllib
from pathlib import Path

import pytest

from fedran.bench.run.config import parse_config
from fedran.bench.run.job import jobs

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "REPRODUCIBILITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\]\(([^)#:]+?)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for block in BLOCK.findall(page.read_text()):
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = [t for t in LINK.findall(page.read_text()) if not t.startswith("http")]
    missing = [t for t in targets if not (page.parent / t).exists()]
    assert not missing


def test_the_documented_experiment_is_one():
    page = (ROOT / "docs/reference/configuration.md").read_text()
    (block,) = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    experiment = parse_config(tomllib.loads(block))
    assert len(jobs(experiment)) == 4 * 2 + 2


def test_some_examples_were_found():
    assert sum(len(BLOCK.findall(p.read_text())) for p in PAGES) >= 5
