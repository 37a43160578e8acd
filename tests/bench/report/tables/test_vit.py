"""The comparison on a ViT: costs on the same streams, and the paper's figures beside ours."""

import pytest

from fedran.bench.report.pages import comparison_sections
from fedran.bench.report.paper import VIT, vit_backbone
from fedran.bench.report.tables.accuracy import accuracy_tables
from fedran.bench.report.tables.table import NOT_RUN
from fedran.bench.report.tables.training import training_tables
from fedran.bench.report.tables.vit import cost_tables, printed_vit_tables
from fedran.bench.results.grouping import groups, row_order
from fedran.bench.results.metrics import (
    PROMPTED,
    has_moving_features,
    is_prompted,
    on_images,
    seconds_with_forward_pass,
    task_seconds,
)
from fedran.methods.prompted.base import PromptedMethod
from fedran.methods.registry import METHODS
from helpers.made_up import made_up
from helpers.made_up_trained import heads, scratch
from helpers.made_up_vit import GPU, PLACE, PROMPTS, analytic, prompted, vit
from helpers.report_tables import column, texts

OURS = {"FedRAN", "FedRAN (fine-tuned in task 0)", "FedRAN-mixture"}


def cells(table, name):
    """The texts of a row by the name in its second column."""
    (row,) = [row for row in table.rows if row[1].text == name]
    return [c.text for c in row]


def test_every_method_on_a_frozen_vit_is_known_to_the_report():
    registered = {k for k, m in METHODS.items() if issubclass(m, PromptedMethod)}
    assert registered <= PROMPTED


def test_prompts_are_neither_heads_nor_networks_and_their_features_move():
    (run,) = prompted(("lorm",))
    assert is_prompted(run)
    assert not on_images(run)
    assert has_moving_features(run)
    assert seconds_with_forward_pass(run) == task_seconds(run)
    assert not any(map(is_prompted, [*heads(), *scratch(), *analytic()]))
    order = [row_order(g) for g in groups([*prompted(), *analytic()])]
    assert sorted(set(order)) == [0, 1, 3]


def test_a_fine_tuned_network_has_its_forward_pass_in_its_time():
    plain, tuned = analytic()[:2]
    assert seconds_with_forward_pass(plain) == task_seconds(plain) + 2.0
    assert seconds_with_forward_pass(tuned) == task_seconds(tuned)


def test_costs_stand_beside_fedran_and_its_mixture():
    (table,) = cost_tables(vit())
    assert table.title.startswith("Cost: CIFAR-100, ViT-Ti/16: 10 tasks, 5 clients")
    names = [row[0].text for row in table.rows]
    assert set(names[:3]) == OURS
    assert names[3:] == [label for label, _, _ in PROMPTS.values()]
    assert texts(table, "rounds per task")["LoRM"] == "5"
    base, slow = task_seconds(analytic()[0]), task_seconds(prompted(("pilora",))[0])
    assert float(texts(table, "Time")["FedRAN"]) == pytest.approx(base, abs=1e-3)
    assert float(texts(table, "with forward pass")["FedRAN"]) == pytest.approx(base + 2, abs=0.01)
    assert texts(table, "ratio to FedRAN")["PILoRA"] == f"{slow / (base + 2):.3g}x"
    assert texts(table, "ratio to FedRAN")["FedRAN"] == "1x"
    sent = texts(table, "sent, ratio to FedRAN")
    assert sent["Fed-CODA-Prompt"] == "15x"
    assert sent["FedRAN-mixture"] == "0.05x"
    assert float(texts(table, "sent")["FedRAN"]) == pytest.approx(6.8e6 / 2**20, abs=0.01)
    assert "same streams" in table.note
    assert "compared with its forward pass" in table.note
    assert f"Machine: {GPU}." in table.note
    assert "indicative" not in table.note


def test_a_forward_pass_that_was_not_timed_is_left_out_and_the_note_says_so():
    (table,) = cost_tables([*analytic(forward=None), *prompted()])
    base, slow = task_seconds(analytic()[0]), task_seconds(prompted(("pilora",))[0])
    assert texts(table, "with forward pass")["FedRAN"] == "-"
    assert texts(table, "ratio to FedRAN")["PILoRA"] == f"{slow / base:.3g}x"
    assert "without its forward pass, which was not timed in these runs" in table.note


def test_costs_count_only_the_streams_of_the_trained_methods():
    runs = [*prompted(seed=1993, beta=0.5), *analytic(seed=1993, beta=0.5)]
    other = [*analytic(seed=7, beta=0.5), *analytic(seed=1993, beta=0.1)]
    both, alone = (cost_tables(found) for found in ([*runs, *other], runs))
    assert [t.rows for t in both] == [t.rows for t in alone]
    assert cost_tables(analytic()) == []


def test_costs_of_ones_own_images_need_no_vit_in_the_name_of_the_dataset():
    (table,) = cost_tables(vit(dataset="photos"))
    assert {row[0].text for row in table.rows} == OURS | {label for label, _, _ in PROMPTS.values()}


def test_costs_prefer_runs_that_had_the_machine_of_the_others_to_themselves():
    shared = analytic(side_by_side=9, client=99.0)
    elsewhere = analytic(machine="Linux x86_64, 2 cores", client=7.0)
    table = cost_tables([*shared, *elsewhere, *prompted(), *analytic()])[0]
    alone = task_seconds(analytic()[0])
    assert float(texts(table, "Time")["FedRAN"]) == pytest.approx(alone, abs=1e-3)
    table = cost_tables([*shared, *prompted()])[0]
    assert "seconds are only indicative: FedRAN; FedRAN (fine-tuned in task 0)" in table.note
    assert "machine" in [c.text for c in table.columns]
    table = cost_tables([*elsewhere, *prompted()])[0]
    assert "Times from different machines cannot be compared" in table.note


def test_the_papers_table_stands_beside_ours_and_says_what_was_not_run():
    (table,) = printed_vit_tables(vit(betas=(0.5,)))
    assert table.title == "The paper's ViT table and ours: CIFAR-100, 10 tasks, 5 clients"
    assert [block[0][0].text for block in table.blocks] == [*VIT, "not in the paper"]
    row = cells(table, "Fed-DualPrompt")
    assert [row[2], row[4], row[6]] == ["69.11 / 56.31", "78.12 / 65.77", "83.02 / 75.07"]
    assert [row[3], row[7]] == [NOT_RUN, NOT_RUN]
    average, final = (float(v) for v in row[5].split(" / "))
    assert 40 < final < average < 80
    assert cells(table, "STSA (fine-tuned in task 0)")[2:] == ["", NOT_RUN] * 3
    assert cells(table, "FedRAN (fine-tuned in task 0)")[5] != NOT_RUN
    assert [row[0].text for row in table.rows][-2:] == ["not in the paper"] * 2
    assert "Ours: ViT-Ti/16, another backbone, so only the order" in table.note
    assert table.note.endswith("Not run: the paper's figures on ImageNet-R.")
    printed = [c for row in table.rows for c in row[2::2]]
    assert all(c.muted and not c.mark for c in printed)


def test_runs_of_published_code_stand_below_the_corrected_ones_or_are_marked_as_not_run():
    label = "PILoRA (as published)"
    published = made_up("pilora", label, family="trained", **{**PLACE, "beta": 0.5})
    (table,) = printed_vit_tables([*vit(), published])
    block = next(b for b in table.blocks if b[0][0].text == "PiLoRA")
    assert [row[1].text for row in block] == ["PILoRA", label]
    assert cells(table, label)[3::2].count(NOT_RUN) == 2
    assert cells(table, "Fed-DualPrompt (as published)")[2:] == ["", NOT_RUN] * 3
    assert len(next(b for b in table.blocks if b[0][0].text == "Fed-CODAP")) == 1


def test_the_papers_own_backbone_is_not_called_another_one():
    (table,) = printed_vit_tables(vit(dataset="cifar100-vit_b16"))
    assert "Ours: ViT-B/16 too, with the weights" in table.note
    assert "another backbone" not in table.note


def test_a_paper_method_without_a_run_has_one_row():
    (table,) = printed_vit_tables(analytic())
    row = next([c.text for c in row] for row in table.rows if row[0].text == "PiLoRA")
    assert row[:3] == ["PiLoRA", "-", "82.85 / 74.09"]
    assert row[3::2] == [NOT_RUN] * 3


def test_exact_stsa_stands_beside_the_papers_stsa():
    tuned = {"task0": {}}
    label = "STSA (fine-tuned in task 0)"
    place = {**PLACE, "beta": 0.5}
    exact = [made_up("stsa", "STSA", **place), made_up("stsa", label, params=tuned, **place)]
    (table,) = printed_vit_tables([*analytic(beta=0.5), *exact])
    block = next(b for b in table.blocks if b[0][0].text == "STSA")
    assert [row[1].text for row in block] == ["STSA-E", "STSA", label]
    assert [row[4].text for row in block] == ["93.30 / 89.74", "", ""]
    assert NOT_RUN not in {row[5].text for row in block}


def test_without_a_vit_there_is_no_table_of_it():
    assert printed_vit_tables([made_up()]) == cost_tables([made_up(), *scratch()]) == []
    five_tasks = [made_up("fedran", dataset="vtab50-vit_ti16")]
    assert printed_vit_tables(five_tasks) == []
    assert vit_backbone("vtab50-vit_s14") == "ViT-S/14"


def test_printed_figures_of_a_vit_appear_once():
    titles = [t.title for t in accuracy_tables(vit())]
    assert not any(t.startswith("Printed") for t in titles)
    first, second, *_ = comparison_sections(vit())
    assert second.slug == "vit"
    assert "Prompt and LoRA methods train" in " ".join(first.intro)
    assert "fine-tuned in task 0" in " ".join(first.intro)


def test_the_schedule_of_prompts_is_not_called_reduced():
    (table,) = training_tables([*prompted(), *analytic()])
    assert column(table, "network")["LoRM"].text == "frozen ViT"
    assert "(a reduced schedule): no row. It states no schedule for methods on a ViT" in table.note
