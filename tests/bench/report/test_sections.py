"""Which sections a report has, which terms it explains, and what it says is missing."""

import re
from pathlib import Path

from fedran.bench.report.sections import EXPECTED, missing, sections, terms
from helpers.made_up import made_up, studies
from helpers.made_up_trained import all_trained, heads, scratch

ROOT = Path(__file__).parents[3]


def slugs(results):
    return [s.slug for s in sections(results)]


def missing_configs(results):
    return [re.search(r"/(\w+)\.toml", line)[1] for line in missing(results)]


def test_sections_appear_in_their_order_and_only_with_results():
    assert slugs([made_up()]) == [
        *("accuracy", "communication", "runtime", "forgetting", "provenance")
    ]
    assert slugs(all_trained()) == [
        *("bytes", "accuracy", "communication", "runtime", "forgetting"),
        *("drift", "training", "provenance"),
    ]
    assert slugs(studies()) == ["labels", "rank", "components", "provenance"]
    assert "drift" not in slugs(heads())
    assert "drift" in slugs(scratch())


def test_the_speed_up_comes_first_in_the_runtime_section():
    (runtime,) = [s for s in sections(all_trained()) if s.slug == "runtime"]
    assert runtime.tables[0].title.startswith("FedRAN against each trained method")


def test_every_table_with_measurements_knows_its_results():
    for s in sections([*all_trained(seeds=(1,)), *studies(seeds=(1,))]):
        for table in s.tables:
            printed = all(c.muted for row in table.rows for c in row)
            assert table.results or printed or s.slug == "provenance", table.title


def test_only_terms_that_occur_are_explained():
    assert list(terms("A_T and printed")) == ["A_T", "printed"]
    assert terms("A_Total") == {}


def test_missing_experiments_are_named_with_their_configuration():
    assert missing_configs([made_up("a", dataset="digits", config="mine.toml")]) == [
        *("accuracy", "labels", "rank", "components"),
        *("clients100", "har", "vtab", "communication"),
        *("trained", "scratch", "vit_prompts", "speedup"),
    ]


def test_results_of_any_configuration_count_as_present():
    found = missing_configs([*heads(config="mine.toml"), *scratch(config="mine.toml")])
    assert "trained" not in found
    assert "scratch" not in found
    assert "speedup" in found
    assert "speedup" not in missing_configs(all_trained())


def test_the_configurations_that_are_named_exist():
    assert [config for _, config, _ in EXPECTED if not (ROOT / config).is_file()] == []
