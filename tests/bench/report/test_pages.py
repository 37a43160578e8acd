"""Which pages a report has: an overview, datasets, studies; new ones without a change of code."""

from fedran.bench.report.export import overview_tables
from fedran.bench.report.pages import comparison_sections, experiment_name, make_pages
from fedran.bench.report.verdict import LINES
from fedran.bench.results import result
from helpers.made_up import comparison, made_up, studies
from helpers.made_up_trained import all_trained, heads, scratch, speedup
from helpers.report_tables import first_cells


def test_the_overview_comes_first_then_datasets_then_studies():
    runs = [*comparison(seeds=(1,), betas=(0.1,)), *all_trained(seeds=(1,)), *studies(seeds=(1,))]
    pages = make_pages(runs, "mine")
    assert [p.slug for p in pages] == [
        *("index", "cifar100", "vtab50-vit-s14", "runtime", "labels", "rank", "components")
    ]
    first = pages[0]
    assert first.title.startswith("mine: accuracy and bytes of ")
    assert 3 <= len(first.verdict) <= 5
    (section,) = first.sections
    assert [c.slug.split("-")[0] for c in section.charts] == ["bytes"]
    assert [t.title for t in section.tables] == ["All comparisons"]


def test_a_dataset_has_one_page_for_all_its_settings():
    _, page = make_pages([made_up(clients=k, beta=b) for k in (5, 100) for b in (0.1, 1.0)], "x")
    assert page.title == "CIFAR-100, EfficientNet-Lite0"
    assert [s.title for s in page.sections if not s.folded] == [
        "5 tasks, 5 clients, dirichlet split",
        "5 tasks, 100 clients, dirichlet split",
    ]


def test_an_unknown_dataset_and_an_unknown_method_have_a_place():
    _, page = make_pages([made_up("new", "New", dataset="my photos")], "x")
    assert (page.slug, page.title) == ("my-photos", "my photos")
    assert page.verdict[0].startswith("New classifies ")


def test_a_new_study_gets_a_page_of_its_own_and_stays_out_of_the_others(monkeypatch):
    monkeypatch.setitem(result.STUDIES, "noise", "Adds noise.")
    runs = [made_up(k, study=s) for k in ("fedran", "afl") for s in ("accuracy", "noise")]
    runs[1] = made_up("fedran", study="noise", params={"epsilon": 1.0})
    index, dataset, page = make_pages(runs, "x")
    assert (page.slug, page.title, page.about) == ("noise", "Noise", "Adds noise.")
    assert page.where.startswith("CIFAR-100, EfficientNet-Lite0: 10 classes in 5 tasks")
    assert page.verdict
    assert page.sections[0].tables
    assert not any("epsilon" in name for name in first_cells(index, dataset))


def test_figures_of_one_setting_on_two_pages_are_different_figures(monkeypatch):
    monkeypatch.setitem(result.STUDIES, "noise", "Adds noise.")
    runs = [made_up(k, study=s) for k in ("fedran", "afl") for s in ("accuracy", "noise")]
    _, *pages = make_pages(runs, "x")
    slugs = [c.slug for p in pages for s in p.sections for c in s.charts]
    assert slugs
    assert len(slugs) == len(set(slugs))


def test_a_folder_with_one_study_alone_has_a_verdict_and_a_printed_table():
    for study in ("rank", "labels", "components"):
        runs = [r for r in studies(seeds=(1,)) if r.study == study]
        assert [p.slug for p in make_pages(runs, "x")] == ["index", study]
        assert make_pages(runs, "x")[0].verdict
        assert overview_tables(runs)[0].rows


def test_runtime_and_speed_up_share_a_page():
    pages = make_pages([*speedup(), made_up(study="runtime")], "x")
    assert [p.slug for p in pages if p.slug != "index"] == ["runtime"]


def test_pages_never_share_a_file():
    slugs = [p.slug for p in make_pages([made_up(dataset=d) for d in ("a b", "a-b", "index")], "x")]
    assert slugs == ["index", "a-b", "a-b-2", "index-2"]


def test_the_experiment_is_named_after_its_only_configuration_or_the_folder():
    assert experiment_name([made_up(config="configs/digits.toml")] * 2, "runs") == "digits"
    assert experiment_name([made_up(config="a.toml"), made_up(config="b.toml")], "runs") == "runs"
    assert experiment_name([made_up(config="")], "runs") == "runs"


def test_every_study_has_a_verdict_and_a_section_without_a_title():
    for name in ("labels", "rank", "components"):
        _, page = make_pages([r for r in studies(seeds=(1,)) if r.study == name], "x")
        assert 1 <= len(page.verdict) <= LINES
        assert all("%" in line for line in page.verdict)
        first = page.sections[0]
        assert (first.slug, first.title, first.folded) == (name, "", False)
    _, page = make_pages(speedup(), "x")
    assert [line for line in page.verdict if "FedRAN takes " in line]
    assert page.sections[0].tables[0].title.startswith("FedRAN against each trained method")


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


def test_every_table_with_measurements_knows_its_results():
    pages = make_pages([*all_trained(seeds=(1,)), *studies(seeds=(1,))], "x")
    for s in (s for page in pages for s in page.sections):
        for table in s.tables:
            printed = all(c.muted for row in table.rows for c in row)
            assert table.results or printed or s.slug == "provenance", table.title


def test_nothing_is_explained_that_is_not_on_the_page():
    (section, *_) = comparison_sections([made_up("fedran"), made_up("afl")])
    assert section.intro == []
    assert "Hollow" not in section.charts[0].note
    assert "below the axis" not in section.charts[0].note
