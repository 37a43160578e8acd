"""Tables of trained methods: order, printed figures, settings, ratios worked out by hand."""

import re

import pytest

from fedran.bench.report.build import make_report
from fedran.bench.report.markdown import markdown_page, markdown_table
from fedran.bench.report.page import html_table
from fedran.bench.report.sections import missing, sections
from fedran.bench.report.tables.accuracy import accuracy_tables
from fedran.bench.report.tables.bytes import communication_tables
from fedran.bench.report.tables.drift import drift_tables
from fedran.bench.report.tables.memory import forgetting_tables
from fedran.bench.report.tables.speedup import speedup_tables
from fedran.bench.report.tables.time import runtime_tables
from fedran.bench.report.tables.training import training_tables
from fedran.bench.results.grouping import comparisons
from fedran.bench.results.metrics import (
    budgets_met,
    rounds_per_task,
    seconds_at,
    upload_at,
    whole_seconds,
)
from helpers.made_up import METHODS, made_up
from helpers.made_up_trained import (
    HEAD_BYTES,
    RESNET18_BYTES,
    all_trained,
    fedran,
    heads,
    scratch,
    speedup,
)

HOSTILE = "<script>alert('x')</script>|*_b_*\x1b[31m\n\u202e" + "long " * 200
PRINTED = "CIFAR-100, printed (ResNet-18)"


def column(table, name, group=""):
    at = next(i for i, c in enumerate(table.columns) if c.text == name and c.group == group)
    return {row[0].text: row[at] for row in table.rows}


def texts(table, name, group=""):
    return {key: c.text for key, c in column(table, name, group).items()}


def test_heads_come_first_then_networks_then_analytic_methods():
    analytic = [made_up(**m) for m in METHODS if m["key"] != "finetune"]
    for runs in (analytic + scratch() + heads(), heads() + analytic + scratch()):
        (table,) = accuracy_tables(runs)
        names = list(texts(table, "A_avg", "cifar100-efficientnet_lite0"))
        assert [n.endswith("(head)") for n in names[:6]] == [True] * 5 + [False]
        assert names[5:12] == [*(r.label for r in scratch()), "FedRAN"]
        assert names[-3:] == ["Joint training", "Send float32 features", "Send 8-bit features"]


def test_printed_figures_stand_beside_networks_not_heads():
    (table,) = accuracy_tables(heads() + scratch())
    told = column(table, "A_avg", PRINTED)
    assert told["Finetune (head)"].text == "-"
    assert told["Finetune (from scratch)"].text == "34.43"
    assert told["FedEWC (from scratch)"].text == "37.39"
    assert told["FedEWC (from scratch, as published)"].text == "37.39"
    assert not {f"{m} (printed, not run)" for m in ("Finetune", "TARGET", "FedEWC")} & set(told)


def test_with_heads_alone_the_papers_methods_are_not_run():
    (table,) = accuracy_tables(heads())
    told = column(table, "A_avg", PRINTED)
    assert told["TARGET (printed, not run)"].text == "48.61"
    by_bytes = next(t for t in communication_tables(heads()) if "β" in t.title)
    assert set(texts(by_bytes, "upload, printed").values()) == {"-"}
    (by_time,) = runtime_tables(heads())
    assert set(texts(by_time, "Time, printed (RTX A5000)").values()) == {"-"}


def test_training_settings_are_told_row_by_row():
    (table,) = training_tables([fedran(), *scratch(), *heads(side_by_side=4)])
    assert texts(table, "rounds a task")["TARGET (from scratch)"] == "100"
    assert texts(table, "network")["Finetune (head)"] == "linear head"
    assert texts(table, "start")["Finetune (head)"] == "frozen features"
    assert texts(table, "start")["Finetune (from scratch)"] == "random weights"
    assert texts(table, "weight decay")["FedLwF (head)"] == "0.0005"
    own = texts(table, "own settings")
    assert own["FedLwF (head)"] == "strength=3, temperature=2"
    assert own["FedEWC (from scratch, as published)"] == "strength=1"
    assert own["FedEWC (from scratch)"] == "flavour=corrected, strength=100"
    assert own["Finetune (head)"] == "-"
    assert texts(table, "machine")["TARGET (head)"] == "Linux x86_64, 4 runs side by side"
    assert texts(table, "client", "seconds a task")["Finetune (from scratch)"] == "300.20"
    assert "FedRAN" not in own


def test_reduced_schedules_are_named():
    (mixed,) = training_tables(heads(50) + scratch(100))
    assert "100 rounds a task and 2 epochs" in mixed.note
    assert "Finetune (head); FedLwF (head)" in mixed.note
    assert "scratch" not in mixed.note
    (all_of_them,) = training_tables(heads(50))
    assert "Reduced here: every row." in all_of_them.note
    (none,) = training_tables(scratch(100))
    assert "Reduced here: no row." in none.note


def test_a_file_of_weights_and_another_machine_are_told():
    params = {"network": "resnet18", "weights": "resnet18.safetensors", "n_rounds": 3}
    runs = [
        made_up("finetune", "F", family="trained", params=params, seed=s, machine=m)
        for s, m in ((1, "laptop"), (2, "server"))
    ]
    (table,) = training_tables(runs)
    assert [row[2].text for row in table.rows] == ["resnet18.safetensors"] * 2
    assert [row[-1].text for row in table.rows] == ["laptop", "server"]
    assert [row[-2].text for row in table.rows] == ["-", "-"]


def test_the_ratios_are_those_of_the_calculator():
    (table,) = speedup_tables(speedup(2))
    time, size, at = "Time", "largest upload", "at 100 rounds, computed"
    # FedRAN: 0.7 s client, 0.3 s server, 2 s forward. A head: 100 rounds, 2.2 + 0.3 s.
    # A network: 2 rounds, 6.2 + 0.3 s, so 310.3 s at 100.
    assert texts(table, "s", time)["FedRAN"] == "1.00"
    assert texts(table, "FedRAN is faster by", time)["TARGET (head)"] == "2.5x"
    assert texts(table, "with forward pass", time)["TARGET (head)"] == "1.5x"
    assert texts(table, "FedRAN is faster by", time)["TARGET (from scratch)"] == "6.5x"
    assert texts(table, "with forward pass", time)["TARGET (from scratch)"] == "2.17x"
    both = texts(table, "both: 100 rounds, forward pass", time)
    assert both["FedRAN"] == "1x"
    assert both["TARGET (from scratch)"] == "103x"  # 310.3 s over FedRAN's 3 s
    computed = column(table, at, time)
    assert (computed["TARGET (from scratch)"].text, computed["TARGET (head)"].text) == (
        "310x",
        "2.5x",
    )
    assert computed["TARGET (from scratch)"].muted
    assert not computed["TARGET (head)"].muted
    assert (
        texts(table, "FedRAN's is smaller by", size)["Finetune (head)"]
        == f"{HEAD_BYTES / 1e4:.3g}x"
    )
    assert texts(table, at, size)["Finetune (from scratch)"] == f"{RESNET18_BYTES / 1e4:.0f}x"


def test_the_papers_ratios_are_printed_beside_networks():
    (table,) = speedup_tables(speedup())
    speed, size = column(table, "printed", "Time"), column(table, "printed", "largest upload")
    assert speed["TARGET (from scratch)"].text == "90.4x"
    assert size["TARGET (from scratch)"].text == "31.9x"
    assert size["Finetune (from scratch)"].text == speed["TARGET (head)"].text == "-"
    assert all(c.muted for c in speed.values())
    assert "96.9x" in table.note
    assert "31.9x" in table.note
    assert "6.5x FedRAN's, at 100 rounds 310x" in table.note


def test_the_printed_mean_speed_up_follows_from_the_printed_table():
    from fedran.bench.report.paper import RUNTIME, SPEEDUP_MEAN

    trained = [row for name, row in RUNTIME.items() if name not in {"STSA", "FedRAN"}]
    for name, told in SPEEDUP_MEAN.items():
        mean = sum(row[name] for row in trained) / len(trained)
        assert round(mean / RUNTIME["FedRAN"][name], 1) == told


def test_only_runs_alone_of_one_file_and_machine_make_a_speed_up():
    assert speedup_tables([fedran(), *heads()]) == []
    assert speedup_tables(speedup(side_by_side=2)) == []
    assert speedup_tables(speedup()[1:]) == []
    assert speedup_tables(speedup()[:1]) == []
    apart = [*speedup()[:1], *speedup(machine="other")[1:]]
    assert speedup_tables(apart) == []
    tables = speedup_tables(speedup() + speedup(machine="other") + speedup(beta=1.0))
    assert [t.collapsed for t in tables] == [False, True, True]
    assert sum("other" in t.note for t in tables) == 1


def test_an_untimed_backbone_leaves_a_dash():
    (table,) = speedup_tables(speedup(forward=None, dataset="digits"))
    assert set(texts(table, "with forward pass", "Time").values()) == {"-"}
    assert "printed" not in [c.text for c in table.columns]


def test_runs_for_the_speed_up_give_way_to_whole_runs():
    runs = [*scratch(100), *speedup(2)]
    (table,) = accuracy_tables(runs)
    names = {row[0].text for row in table.rows}
    assert "Finetune (from scratch)" in names
    assert "Finetune (head)" in names
    assert not any("n_rounds" in name for name in names)
    assert len(comparisons(speedup(2))) == len(speedup(2))


def test_runtime_takes_both_files_made_for_it_and_counts_the_forward_pass():
    other = made_up("afl", "AFL")
    own = made_up("afl", "AFL", seed=2, study="runtime")
    (table,) = runtime_tables([other, own, *speedup(beta=0.1)])
    assert texts(table, "seeds")["AFL"] == "1"
    whole = texts(table, "Time with forward pass")
    assert whole["FedRAN"] == "3.00"
    assert whole["Finetune (head)"] == "4.50"
    assert whole["Finetune (from scratch)"] == "6.50"


def test_drift_and_accuracy_on_the_reference_rows():
    (table,) = drift_tables([fedran(), made_up("afl"), *heads(), *scratch()])
    drift, right = "drift after", "accuracy on the reference rows after, %"
    assert texts(table, "task 2", drift)["Finetune (from scratch)"] == "0"
    assert texts(table, "task 5", drift)["Finetune (from scratch)"] == "1.3"
    assert texts(table, "task 5", drift)["FedRAN"] == "0"
    assert texts(table, "task 5", right)["FedRAN"] == "84.0"
    assert texts(table, "task 5", right)["Finetune (head)"] == "30.0"
    assert "afl" not in texts(table, "task 5", drift)


def test_results_without_reference_accuracy_are_fine():
    runs = [made_up(), *scratch(reference_acc=[])]
    (table,) = drift_tables(runs)
    assert {row[-1].text for row in table.rows} == {"-"}
    assert drift_tables([fedran(), *heads()]) == []


def test_a_frozen_head_meets_a_drift_budget():
    head, net = heads(budgets={"drift": 0.5})[0], scratch(budgets={"drift": 0.5})[0]
    assert budgets_met(head) == {"drift": True}
    assert budgets_met(net) == {"drift": False}
    untold = scratch(drift=[])[0]
    (table,) = forgetting_tables([head, untold])
    assert texts(table, "drift") == {"Finetune (head)": "0 (frozen)", untold.label: "-"}


def test_a_closing_round_is_not_a_round_of_training():
    target = next(r for r in scratch(10) if r.key == "target")
    assert (target.tasks[0].rounds, rounds_per_task(target)) == (11, 10)
    assert seconds_at(target, 100) == pytest.approx(10 * 30.2 + 0.3)
    assert upload_at(target, 100) == 100 * RESNET18_BYTES
    assert whole_seconds(target) == pytest.approx(30.5)
    odd = made_up(family="trained", params={"n_rounds": "many"}, rounds=4)
    assert rounds_per_task(odd) == 4


@pytest.mark.parametrize("render", [html_table, markdown_table])
def test_hostile_settings_are_text(render):
    place = {"study": "speedup"}
    names = ("network", "weights", "averaging", "lr", "epochs", "own")
    odd = made_up(
        *("finetune", HOSTILE),
        **{"family": "trained", "drift": [0, 1, 1, 1], "machine": HOSTILE, **place},
        params={**dict.fromkeys(names, HOSTILE), HOSTILE: {"a": [HOSTILE]}},
    )
    runs = [odd, fedran(machine=HOSTILE, **place)]
    for make in (training_tables, speedup_tables, drift_tables, runtime_tables):
        out = "".join(map(render, make(runs)))
        assert "&lt;script&gt;" in out
        assert "<script" not in out
        assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", out)


def test_what_is_missing_and_what_is_there():
    told = "; ".join(missing([made_up()]))
    for stem in ("trained", "scratch", "speedup"):
        assert f"configs/paper/{stem}.toml" in told
    told = "; ".join(missing([*heads(config="mine.toml"), *scratch(config="mine.toml")]))
    assert "trained.toml" not in told
    assert "scratch.toml" not in told
    assert "speedup.toml" in told
    assert "speedup.toml" not in "; ".join(missing(all_trained()))


def test_sections_stand_in_their_places():
    names = [s.slug for s in sections(all_trained())]
    assert names[:2] == ["accuracy", "training"]
    assert names[names.index("tasks") + 1] == "motivation"
    runtime = next(s for s in sections(all_trained()) if s.slug == "runtime")
    assert runtime.tables[0].title.startswith("FedRAN against each trained method")
    assert not {"training", "motivation"} & {s.slug for s in sections([made_up()])}


def test_markdown_holds_the_new_tables():
    page = markdown_page(all_trained(seeds=(1,)))
    for line in ("## Training settings", "## Motivation", "### FedRAN against each trained"):
        assert line in page
    assert "| Time: at 100 rounds, computed |" in page
    assert "*310x*" in page


@pytest.mark.parametrize("make", [heads, scratch])
def test_a_report_of_trained_results_alone(make):
    pytest.importorskip("matplotlib")
    page = make_report(make()).page
    assert '<section id="training">' in page
    assert ('<section id="motivation">' in page) == (make is scratch)
