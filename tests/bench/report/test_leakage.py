"""The page on leakage: lines are found by what they say, and every figure stands in its column."""

import json

import pytest

from fedran.bench.report.leakage import (
    STUDY,
    leakage_sections,
    leakage_verdict,
    read_leakage,
    short_table,
)
from fedran.leakage.attacks import HEADS, MEAN, SCATTER, SPAN

LINE = {
    "study": STUDY,
    "dataset": "cifar100-vit_ti16",
    "date": "2026-01-02",
    "command": "python measure.py",
    "stream": 1,
    "classes": 2,
    "sites": 4,
    "beta": 0.5,
    "cohort": 3,
    "out_features": 64,
    "sketch": 8,
    "delta": 1e-5,
    "name": "summary",
    "bytes": 2048,
    "members": 1500,
    "reference": 99,
    "single": [1, 2],
    "found": [0, 0],
    "cosine": None,
    "auc": 0.9,
    "tpr": 0.25,
    "attacks": {SPAN: 0.8, MEAN: 0.7, SCATTER: 0.6, HEADS: 0.55},
    "error": 0.01,
    "a field of a later version": 1,
}


@pytest.fixture
def measured(tmp_path):
    lines = [LINE, {**LINE, "name": "mixture", "auc": 0.6, "attacks": {HEADS: 0.5}}]
    other = {"study": "rank", "auc": 1.0}
    texts = [*map(json.dumps, [lines[0], other, 3, lines[1]]), "no JSON"]
    (tmp_path / "any.ndjson").write_text("\n".join(texts))
    return read_leakage(tmp_path)


def test_lines_are_found_by_what_they_say(measured):
    assert [m.name for m in measured] == ["summary", "mixture"]


def test_a_line_that_lacks_a_figure_is_named(tmp_path):
    (tmp_path / "a.ndjson").write_text(json.dumps({"study": STUDY, "name": "summary"}))
    with pytest.raises(ValueError, match=r"a.ndjson, line 1: .*'dataset'"):
        read_leakage(tmp_path)


def test_every_figure_stands_in_its_column(measured):
    (section,) = leakage_sections(measured)
    assert section.title == "CIFAR-100, ViT-Ti/16"
    findings, parts = section.tables
    first = dict(zip([c.text for c in findings.columns], findings.rows[0], strict=True))
    assert {name: cell.text for name, cell in first.items()} == {
        "message": "summary",
        "size": "2.0 KiB",
        "single rows": "1 of 2",
        "rows in the factor": "-",
        "small classes": "-",
        "AUC": "0.900",
        "TPR at 0.1 %": "25.00 %",
        "head alone": "0.550",
    }
    assert [c.text for c in parts.rows[0]] == ["summary", "0.800", "0.700", "0.600", "-"]
    assert [c.text for c in parts.rows[1]] == ["mixture", "-", "-", "-", "-"]


def test_the_page_says_how_many_random_features_it_was_measured_with(measured):
    (section,) = leakage_sections(measured)
    assert "M = 64 random features" in section.tables[0].note
    assert "python measure.py on 2026-01-02" in section.tables[0].note


def test_the_verdict_names_what_reveals_most_and_least(measured):
    (line,) = leakage_verdict(measured)
    assert '"summary" reveals most (AUC 0.900), "mixture" least (AUC 0.600)' in line


def test_backbones_stand_side_by_side(measured):
    table = short_table(measured)
    assert [c.group for c in table.columns] == ["", *["ViT-Ti/16"] * 3]
    assert [c.text for c in table.rows[0]] == ["summary", "0.900", "25.00 %", "0.550"]
