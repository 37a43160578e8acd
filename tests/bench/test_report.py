"""The page as a whole, and the command."""

import re
import sys
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from fedran.bench.report import page
from fedran.bench.report.build import load_results, make_report, write_report
from fedran.bench.report.sections import EXPECTED, missing
from fedran.cli.main import run
from helpers.made_up import METHODS, made_up, studies, write
from helpers.made_up_trained import all_trained

pytest.importorskip("matplotlib")

HOSTILE = "<script>alert(1)</script>\"'><img src=http://x.example/>\x1b[2J" + "w" * 3000
VOID = {"meta", "br", "img", "link", "hr", "input"}


class Reader(HTMLParser):
    """Checks that tags close in order; collects tags and addresses."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.links, self.ids = [], set(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [v for k, v in attrs if k in {"src", "href", "xlink:href", "action"}]
        self.ids += [v for k, v in attrs if k == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def results():
    runs = [made_up(**m, beta=b, seed=s) for m in METHODS for b in (0.1, 1.0) for s in (1, 2)]
    foreign = made_up("odd", HOSTILE, sends=HOSTILE, machine=HOSTILE, config=HOSTILE, seed=1)
    other = made_up("fedran", "FedRAN", dataset=HOSTILE)
    return runs + studies(seeds=(1,)) + all_trained(seeds=(1,)) + [foreign, other]


@pytest.fixture(scope="module")
def report(results):
    return make_report(results)


def read(text):
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def test_the_page_is_whole_and_loads_nothing(report):
    found = read(report.page)
    assert not {"script", "img", "link", "iframe"} & found.tags
    assert all(link.startswith("#") for link in found.links)
    assert "http://x.example" not in "".join(found.links)
    assert not re.search(r"@import|url\((?!#)", report.page)
    assert len(found.ids) == len(set(found.ids))
    assert {link[1:] for link in found.links} <= set(found.ids)


def test_every_section_is_there(report):
    names = "accuracy training communication runtime tasks motivation labels rank components"
    for name in [*names.split(), "rounds", "front", "forgetting", "provenance", "terms"]:
        assert f'<section id="{name}">' in report.page


def test_hostile_strings_are_escaped(report):
    assert "<script" not in report.page
    assert "&lt;script&gt;" in report.page
    assert "\x1b" not in report.page


def test_without_jinja2_the_error_says_what_to_install(monkeypatch):
    page._environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"needs Jinja2: pip install 'fedran\[report\]'"):
        make_report([made_up()])


def test_templates_are_package_data_and_escape_by_default():
    folder = resources.files("fedran.bench.report") / "templates"
    assert {f.name for f in folder.iterdir()} == {"page.html", "table.html", "report.css"}
    assert page._environment().from_string("{{ x }}").render(x="<b>") == "&lt;b&gt;"


def test_missing_sections_are_named_with_their_configuration(report):
    assert "har.toml" in report.page
    assert "rank.toml;" not in report.page
    told = missing([made_up("a", dataset="digits", config="mine.toml")])
    stems = [re.search(r"/(\w+)\.toml", line)[1] for line in told]
    assert stems == [
        *("accuracy", "labels", "rank", "components"),
        *("clients100", "har", "vtab", "communication"),
        *("trained", "scratch", "speedup"),
    ]


def test_the_configurations_that_are_named_exist():
    root = Path(__file__).parents[2]
    assert [config for _, config, _ in EXPECTED if not (root / config).is_file()] == []


def test_a_single_run_makes_a_page():
    text = make_report([made_up(tasks=1, beta=None, partitioner="subjects", dataset="har")]).page
    read(text)
    assert "One seed each" in text
    assert '<section id="forgetting">' not in text


def test_the_same_results_give_the_same_bytes(tmp_path, results):
    runs = write(tmp_path / "in", results[:8] + results[-2:])
    pages = [write_report(runs, tmp_path / name) for name in ("a", "b")]
    for path in sorted(pages[0].parent.rglob("*.*")):
        twin = pages[1].parent / path.relative_to(pages[0].parent)
        assert path.read_bytes() == twin.read_bytes()
    assert len(list(pages[0].parent.rglob("*.png"))) == len(list(pages[0].parent.rglob("*.svg")))


def test_files_below_the_folder_are_found(tmp_path):
    write(tmp_path / "a" / "b", [made_up(seed=1)], "x.jsonl")
    write(tmp_path, [made_up(seed=2)], "y.jsonl")
    assert len(load_results(tmp_path)) == 2


def test_errors_are_one_sentence(tmp_path, capsys):
    for command, told in (
        ([str(tmp_path / "no")], "no such folder"),
        ([str(tmp_path)], "no results"),
    ):
        assert run(["report", *command]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
    write(tmp_path, [made_up()], "ok.jsonl")
    broken = tmp_path / "z.jsonl"
    for line in ("{", "[]", "{}", made_up().to_json().replace('"acc": [[', '"acc": [[0.5], [')):
        broken.write_text(line + "\n")
        assert run(["report", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "Traceback" not in error


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    write(tmp_path / "in", [made_up(seed=s) for s in (1, 2)])
    assert run(["report", str(tmp_path / "in"), "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert str(tmp_path / "out" / "index.html") in told.replace("\n", "")
    assert "figures/tasks-cifar100" in told
    assert (tmp_path / "out" / "index.html").is_file()
