"""The HTML page: complete, self-contained, and safe with hostile text."""

import re
import sys
from html.parser import HTMLParser
from importlib import resources

import pytest

from fedran.bench.report import page
from fedran.bench.report.build import make_report
from fedran.bench.report.page import html_table
from fedran.bench.report.tables.drift import drift_tables
from fedran.bench.report.tables.runtime import runtime_tables, speedup_tables
from fedran.bench.report.tables.table import Cell, Column, Table
from fedran.bench.report.tables.training import training_tables
from helpers.made_up import made_up
from helpers.made_up_trained import fedran
from helpers.report_tables import HOSTILE, assert_is_plain_text

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


@pytest.fixture(scope="module")
def full_page(full_report):
    return full_report.page


def test_the_page_is_well_formed_and_loads_nothing(full_page):
    found = parsed(full_page)
    assert not {"script", "img", "link", "iframe"} & found.tags
    assert all(link.startswith("#") for link in found.links)
    assert not re.search(r"@import|url\((?!#)", full_page)
    assert len(found.ids) == len(set(found.ids))
    assert {link[1:] for link in found.links} <= set(found.ids)


def test_every_section_is_on_the_page(full_page):
    names = "terms accuracy communication runtime forgetting drift training labels rank components"
    for name in [*names.split(), "provenance"]:
        assert f'<section id="{name}">' in full_page


def test_hostile_strings_are_escaped(full_page):
    assert_is_plain_text(full_page)


def test_missing_experiments_are_named(full_page):
    assert "fedran run configs/har.toml" in full_page
    assert "rank.toml;" not in full_page


def test_a_single_run_makes_a_page():
    text = make_report([made_up(tasks=1, beta=None, partitioner="subjects", dataset="har")]).page
    parsed(text)
    assert "One seed each" in text
    assert '<section id="forgetting">' not in text


def test_without_jinja2_the_error_says_what_to_install(monkeypatch):
    page._environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"needs Jinja2: install fedran's extra 'report'"):
        make_report([made_up()])


def test_templates_are_package_data_and_escape_by_default():
    folder = resources.files("fedran.bench.report") / "templates"
    assert {f.name for f in folder.iterdir()} == {"page.html", "table.html", "report.css"}
    assert page._environment().from_string("{{ x }}").render(x="<b>") == "&lt;b&gt;"


def test_headings_span_their_group_and_first_cells_their_block():
    columns = [Column("m"), Column("x", "g"), Column("y", "g")]
    out = html_table(Table("t", columns, [[[Cell("a")] * 3, [Cell("a")] * 3]]))
    assert 'colspan="2"' in out
    assert out.count('rowspan="2"') == 2
    assert out.count("<th") == 4 + 2  # thead counts too


def test_accuracies_get_subscripts():
    assert "A<sub>avg</sub>" in html_table(Table("t", [Column("A_avg")]))


def test_a_table_names_the_commands_and_the_date_of_its_results():
    out = html_table(Table("t", [Column("x")], results=[made_up(config="<a>.toml")]))
    assert "<code>fedran run &lt;a&gt;.toml</code>" in out
    assert "on 2026-11-15." in out


@pytest.mark.parametrize("part", ["title", "note", "heading", "group", "cell"])
def test_hostile_text_stays_text_in_every_part_of_a_table(part):
    text = {"title": "", "note": "", "heading": "", "group": "", "cell": "", part: HOSTILE}
    columns = [Column(text["heading"], text["group"])]
    table = Table(text["title"], columns, [[[Cell(text["cell"])]]], text["note"])
    assert_is_plain_text(html_table(table))


def test_hostile_settings_of_trained_methods_stay_text():
    names = ("network", "weights", "averaging", "lr", "epochs", "own")
    hostile = made_up(
        *("finetune", HOSTILE),
        **{"family": "trained", "drift": [0, 1, 1, 1], "machine": HOSTILE, "study": "speedup"},
        params={**dict.fromkeys(names, HOSTILE), HOSTILE: {"a": [HOSTILE]}},
    )
    runs = [hostile, fedran(machine=HOSTILE, study="speedup")]
    for make in (training_tables, speedup_tables, drift_tables, runtime_tables):
        assert_is_plain_text("".join(map(html_table, make(runs))))
