"""``fedran report``: printed tables, the page, exported files."""

import sys

import pytest

from helpers.made_up import made_up


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
        from fedran.bench.report.build import _environment

        _environment.cache_clear()
    code, out, err = cli("report", "runs", "--export", "tables")
    assert (code, err) == (0, "")
    assert "A_avg" in out
    assert "fedran" in out
    assert "No pages were written, because " in out
    assert "install fedran's extra 'report'" in out
    assert "files of tables in tables" in out


def test_text_alone_writes_nothing(cli, tmp_path):
    code, out, _ = cli("report", "runs", "--text")
    assert code == 0
    title, where, _, *lines = out.splitlines()
    assert title == "accuracy: accuracy and bytes of 2 methods"
    assert where.startswith("CIFAR-100, EfficientNet-Lite0: 10 classes in 5 tasks, 5 clients")
    assert lines[0].startswith("1. fedran classifies ")
    assert len([x for x in lines if x.startswith(("fedran ", "afl "))]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["a.jsonl"]


def test_a_folder_without_results_is_one_line(cli, tmp_path):
    (tmp_path / "empty").mkdir()
    code, out, err = cli("report", "empty")
    assert (code, out) == (2, "")
    assert "no results" in err
