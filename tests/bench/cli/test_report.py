"""``fedran bench report``: printed tables, the page, exported files."""

import sys
from pathlib import Path

import pytest

from helpers.bench.made_up import made_up


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    lines = [made_up(k, seed=s).to_json() for k in ("fedran", "afl") for s in (1, 2)]
    (tmp_path / "runs" / "a.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("absent", ["matplotlib", "jinja2"])
def test_without_the_extra_there_are_tables_and_a_hint_but_no_page(cli, absent, monkeypatch):
    monkeypatch.setitem(sys.modules, absent, None)
    if absent == "jinja2":
        from fedran_bench.report.pages import _environment

        _environment.cache_clear()
    code, out, err = cli("bench", "report", "runs", "--export", "tables")
    assert (code, err) == (0, "")
    assert "A_avg" in out
    assert "fedran" in out
    assert "No pages were written, because " in out
    assert "install fedran's extra 'bench'" in out
    assert list(Path("tables").glob("*.csv"))


def test_text_alone_writes_nothing(cli, tmp_path):
    code, out, _ = cli("bench", "report", "runs", "--text")
    assert code == 0
    lines = out.splitlines()
    assert "2 methods" in lines[0]
    assert "10 classes in 5 tasks, 5 clients" in lines[1]
    assert lines[3].startswith("1. fedran classifies ")
    assert len([x for x in lines if x.startswith(("fedran ", "afl "))]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["a.jsonl"]


def test_pages_with_figures_are_written_beside_the_results(cli, tmp_path):
    pytest.importorskip("matplotlib")
    code, out, _ = cli("bench", "report", "runs", "--name", "trial")
    assert code == 0
    assert "1 page, 2 figures" in out
    page = (tmp_path / "runs" / "report" / "index.html").read_text()
    assert "<h1>trial: accuracy and bytes of 2 methods</h1>" in page
