"""The HTML page: complete, self-contained, and safe with hostile text."""

import re
import sys
from html.parser import HTMLParser
from importlib import resources

import pytest

from fedran.bench.report import build
from fedran.bench.report.build import make_report
from fedran.bench.report.drift import drift_tables
from fedran.bench.report.tables.runtime import runtime_tables, speedup_tables
from fedran.bench.report.tables.table import Cell, Column, Table
from fedran.bench.report.tables.training import training_tables
from helpers.made_up import made_up
from helpers.made_up_trained import fedran
from helpers.report_tables import HOSTILE, assert_is_plain_text

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

VOID = {"meta", "br", "img", "link", "hr", "input"}


def html_table(table):
    return str(build._environment().get_template("table.html").module.html_table(table))


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


def test_no_part_of_a_page_scrolls_by_itself(full_report):
    for text in full_report.pages.values():
        assert "overflow-x" not in text
        assert not re.search(r"overflow: *(auto|scroll)", text)


def test_every_section_is_on_a_page(full_report):
    together = "".join(full_report.pages.values())
    for name in ["bytes", "vit", "communication", "forgetting", "drift", "training", "provenance"]:
        assert f'id="{name}"' in together
    for name in ("labels", "rank", "components", "runtime"):
        assert f'<section id="{name}">' in full_report.pages[f"{name}.html"]


def test_the_first_page_opens_with_name_verdict_and_figure(full_report):
    text = full_report.pages["index.html"]
    order = [
        "<title>made up: accuracy and bytes of ",
        "<h1>",
        "Verdict",
        "<figure>",
        "All comparisons",
    ]
    assert [text.index(x) for x in order] == sorted(text.index(x) for x in order)
    assert 3 <= len(re.findall("<li>", text[: text.index("<main>")])) <= 5
    other = full_report.pages["cifar100.html"]
    assert "<title>CIFAR-100, EfficientNet-Lite0 - made up</title>" in other


def test_hostile_strings_are_escaped(full_report):
    texts = list(full_report.pages.values())
    assert_is_plain_text("".join(texts))
    assert sum("&lt;script&gt;" in text for text in texts) > 1


def test_a_single_run_makes_pages():
    runs = [made_up(tasks=1, beta=None, partitioner="subjects", dataset="har")]
    pages = make_report(runs).pages
    assert list(pages) == ["index.html", "har.html"]
    for text in pages.values():
        parsed(text)
    assert "One seed each" in pages["har.html"]
    assert 'id="forgetting"' not in pages["har.html"]


def test_without_jinja2_the_error_says_what_to_install(monkeypatch):
    build._environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"needs Jinja2: install fedran's extra 'report'"):
        make_report([made_up()])


def test_templates_are_package_data_and_escape_by_default():
    folder = resources.files("fedran.bench.report") / "templates"
    assert {f.name for f in folder.iterdir()} == {"page.html", "table.html", "report.css"}
    assert build._environment().from_string("{{ x }}").render(x="<b>") == "&lt;b&gt;"


def test_headings_span_their_group_and_first_cells_their_block():
    columns = [Column("m"), Column("x", "g"), Column("y", "g")]
    out = html_table(Table("t", columns, [[[Cell("a")] * 3, [Cell("a")] * 3]]))
    assert 'colspan="2"' in out
    assert out.count('rowspan="2"') == 2
    assert out.count("<th ") == 4 + 2, "the second row repeats its first cell for narrow windows"


def test_a_cell_carries_its_heading_for_narrow_windows():
    out = html_table(Table("t", [Column("m"), Column("A_T", 'g"<')], [[[Cell("a"), Cell("1")]]]))
    assert 'data-label="g&#34;&lt;: A_T"' in out


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
