"""From a folder of results to HTML pages: complete, self-contained and safe in any window."""

import re
from html.parser import HTMLParser

import pytest

from fedran.cli.main import run
from fedran_bench.report.pages import experiment_name, load_results, make_pages, make_report
from helpers.bench.made_up import METHODS, made_up, studies, write

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

VOID = {"meta", "br", "img", "link", "hr", "input"}


class Reader(HTMLParser):
    """Checks that tags close in order; collects tags, addresses and ids."""

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


def parsed(text):
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def test_every_page_is_well_formed_and_loads_nothing(full_report):
    for text in full_report.pages.values():
        found = parsed(text)
        assert not {"script", "img", "link", "iframe"} & found.tags
        assert not re.search(r"@import|url\((?!#)", text)
        assert len(found.ids) == len(set(found.ids))
        assert {x for x in found.links if not x.startswith("#")} == set(full_report.pages)
        assert {x[1:] for x in found.links if x.startswith("#")} <= set(found.ids)


def test_hostile_strings_stay_text(full_report):
    text = "".join(full_report.pages.values())
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)


def test_one_dataset_is_one_page_and_several_get_a_first_one():
    one = make_pages([made_up("fedran"), made_up("afl"), made_up(clients=9)], "name")
    assert [p.slug for p in one] == ["index"]
    assert [s.title for s in one[0].sections] == [
        "5 tasks, 5 clients, dirichlet split",
        "5 tasks, 9 clients, dirichlet split",
    ]
    first, *others = make_pages([made_up(dataset=d) for d in ("index", "a b", "a-b")], "name")
    assert first.slug == "index"
    assert len({"index", *(p.slug for p in others)}) == 4


def test_studies_that_vary_a_setting_have_a_table_each_and_no_verdict():
    sections = make_pages([made_up(), *studies()], "")[0].sections
    assert [bool(s.verdict) for s in sections] == [True, False, False]
    labels = next(s for s in sections if s.title.endswith("labels")).tables[0]
    assert [row[1].text for row in labels.rows] == ["100 % labelled"] * 2 + ["20 % labelled"] * 2
    alone = make_report(studies()).pages["index.html"]
    assert "Study: rank" in alone


def test_a_single_run_makes_a_page():
    runs = [made_up(tasks=1, beta=None, partitioner="subjects", dataset="har")]
    report = make_report(runs)
    assert list(report.pages) == ["index.html"]
    assert report.figures == {}
    assert "forgetting" not in parsed(report.pages["index.html"]).tags


def test_the_same_results_give_the_same_bytes(tmp_path):
    runs = write(tmp_path / "in", [made_up(**m, seed=s) for m in METHODS[:4] for s in (1, 2)])
    first, second = (
        make_report(load_results(runs)).write(tmp_path / name).parent for name in ("a", "b")
    )
    files = sorted(p.relative_to(first) for p in first.rglob("*.*"))
    assert {p.suffix for p in files} == {".html", ".svg"}
    for path in files:
        assert (first / path).read_bytes() == (second / path).read_bytes()


def test_results_in_subfolders_are_found(tmp_path):
    write(tmp_path / "a" / "b", [made_up(seed=1)], "x.jsonl")
    write(tmp_path, [made_up(seed=2)], "y.jsonl")
    assert len(load_results(tmp_path)) == 2


def test_the_papers_datasets_come_first_and_larger_uploads_before_smaller(tmp_path):
    runs = [
        made_up(dataset="digits"),
        made_up(dataset="vtab50-x"),
        made_up(dataset="cifar100-x", clients=100),
        made_up("afl", dataset="cifar100-x"),
        made_up(dataset="cifar100-x", upload=10, params={"rank": 1}),
        made_up(dataset="cifar100-x", upload=20, params={"rank": 2}),
    ]
    found = load_results(write(tmp_path, runs))
    assert [runs.index(r) for r in found] == [5, 4, 3, 2, 1, 0]


def test_the_name_is_that_of_the_only_configuration_or_of_the_folder():
    assert experiment_name([made_up(config="a/b.toml")], "runs") == "b"
    assert experiment_name([made_up(config="a/b.toml"), made_up(config="c.toml")], "runs") == "runs"
    assert experiment_name([made_up(config="")], "runs") == "runs"


def one_line_error(capsys, *arguments):
    assert run(["bench", "report", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return error


def test_a_folder_without_results_is_refused_in_one_sentence(tmp_path, capsys):
    assert "no such folder" in one_line_error(capsys, tmp_path / "no")
    assert "no results" in one_line_error(capsys, tmp_path)
    write(tmp_path, [made_up()], "ok.jsonl")
    assert f"try {tmp_path}\n" in one_line_error(capsys, tmp_path / "ok.jsonl")


@pytest.mark.parametrize("line", ["{", "[]", "{}"])
def test_a_broken_line_is_refused_in_one_sentence(tmp_path, capsys, line):
    write(tmp_path, [made_up()], "ok.jsonl")
    (tmp_path / "z.jsonl").write_text(line + "\n")
    one_line_error(capsys, tmp_path)
