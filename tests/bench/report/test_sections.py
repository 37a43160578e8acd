"""Which sections a page has, and which terms it explains where."""

from fedran.bench.report.sections import comparison_sections, first_terms, study_sections, terms
from helpers.made_up import comparison, made_up, studies
from helpers.made_up_trained import all_trained, heads, scratch


def slugs(results):
    return [s.slug for s in comparison_sections(results)]


def test_sections_appear_in_their_order_and_only_with_results():
    first = "setting-5-tasks-5-clients-dirichlet-split"
    assert slugs([made_up()]) == [first, "communication", "runtime", "forgetting", "provenance"]
    assert slugs(all_trained()) == [
        *(first, "communication", "runtime", "forgetting", "drift", "training", "provenance")
    ]
    assert "drift" not in slugs(heads())
    assert "drift" in slugs(scratch())


def test_only_the_settings_are_unfolded_and_each_has_a_section():
    parts = comparison_sections([made_up(clients=k) for k in (5, 100)] + [made_up("b")])
    assert [s.title for s in parts if not s.folded] == [
        "5 tasks, 5 clients, dirichlet split",
        "5 tasks, 100 clients, dirichlet split",
    ]


def test_settings_of_several_datasets_are_named_with_their_dataset():
    first, second, *_ = comparison_sections([made_up(dataset=d) for d in ("a", "b")])
    assert first.title == "a: 5 tasks, 5 clients, dirichlet split"
    assert first.slug != second.slug


def test_an_unknown_study_is_shown_as_a_comparison():
    runs = [made_up(k, study="communication") for k in ("a", "b")]
    assert [s.slug for s in study_sections("new", runs)] == slugs(runs)
    first, *_ = study_sections("rank", studies(seeds=(1,)))
    assert (first.slug, first.title, first.folded) == ("rank", "", False)


def test_the_speed_up_comes_first_in_the_runtime_section():
    runtime, _ = study_sections("speedup", all_trained())
    assert runtime.tables[0].title.startswith("FedRAN against each trained method")


def test_every_table_with_measurements_knows_its_results():
    parts = comparison_sections(all_trained(seeds=(1,)))
    for study in ("labels", "rank", "components"):
        parts += study_sections(study, [r for r in studies(seeds=(1,)) if r.study == study])
    for s in parts:
        for table in s.tables:
            printed = all(c.muted for row in table.rows for c in row)
            assert table.results or printed or s.slug == "provenance", table.title


def test_only_terms_that_occur_are_explained():
    assert list(terms("A_T and printed")) == ["A_T", "printed"]
    assert terms("A_Total") == {}


def test_a_term_is_explained_in_the_first_section_that_uses_it():
    explained = [set(new) for _, new in first_terms(comparison_sections(comparison(seeds=(1,))))]
    assert {"A_avg", "A_T", "β"} <= explained[0]
    assert sum(map(len, explained)) == len(set().union(*explained))


def test_nothing_is_explained_that_is_not_on_the_page():
    (section, *_) = comparison_sections([made_up("fedran"), made_up("afl")])
    assert section.intro == []
    assert "Hollow" not in section.charts[0].note
    assert "below the axis" not in section.charts[0].note
