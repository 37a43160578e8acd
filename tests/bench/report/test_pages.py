"""Which pages a report has: an overview, datasets, studies; new ones without a change of code."""

from fedran.bench.report.export import overview_tables
from fedran.bench.report.pages import experiment_name, make_pages
from fedran.bench.results import result
from helpers.made_up import comparison, made_up, studies
from helpers.made_up_trained import all_trained, speedup
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
