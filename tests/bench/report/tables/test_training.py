"""The table of training settings."""

from fedran.bench.report.tables.training import training_tables
from helpers.made_up import made_up
from helpers.made_up_trained import fedran, heads, scratch
from helpers.report_tables import texts


def test_every_trained_method_has_its_settings():
    (table,) = training_tables([fedran(), *scratch(), *heads(side_by_side=4)])
    assert texts(table, "rounds per task")["TARGET (from scratch)"] == "100"
    assert texts(table, "network")["Finetune (head)"] == "linear head"
    assert texts(table, "start")["Finetune (head)"] == "frozen features"
    assert texts(table, "start")["Finetune (from scratch)"] == "random weights"
    assert texts(table, "lr")["FedLwF (head)"] == "0.05"
    other = texts(table, "other settings")
    assert other["FedLwF (head)"] == "strength=3, temperature=2"
    assert other["FedEWC (from scratch, as published)"] == "strength=1"
    assert other["FedEWC (from scratch)"] == "flavour=corrected, strength=100"
    assert other["Finetune (head)"] == "-"
    assert texts(table, "machine")["TARGET (head)"] == "Linux x86_64, 4 runs side by side"
    assert texts(table, "client", "seconds per task")["Finetune (from scratch)"] == "300.20"
    assert "FedRAN" not in other


def test_settings_that_agree_are_stated_once_and_others_have_a_column():
    (table,) = training_tables(heads())
    assert table.note.endswith(
        "The same in all rows: momentum 0.9, weight decay 0.0005, batch 128, "
        "averaging unweighted, participation 1."
    )
    other = made_up("target", "T", family="trained", params={"momentum": 0.5})
    (table,) = training_tables([*heads(), other])
    assert texts(table, "momentum")["FedLwF (head)"] == "0.9"
    assert texts(table, "momentum")["T"] == "0.5"


def test_reduced_schedules_are_named():
    (mixed,) = training_tables(heads(50) + scratch(100))
    assert "100 rounds per task and 2 epochs" in mixed.note
    assert "Finetune (head); FedLwF (head)" in mixed.note
    assert "scratch" not in mixed.note
    (every,) = training_tables(heads(50))
    assert "schedule): every row." in every.note
    (none,) = training_tables(scratch(100))
    assert "schedule): no row." in none.note


def test_each_machine_has_its_row_and_a_file_of_weights_is_named():
    params = {"network": "resnet18", "weights": "resnet18.safetensors", "n_rounds": 3}
    runs = [
        made_up("finetune", "F", family="trained", params=params, seed=s, machine=m)
        for s, m in ((1, "laptop"), (2, "server"))
    ]
    (table,) = training_tables(runs)
    assert [row[2].text for row in table.rows] == ["resnet18.safetensors"] * 2
    assert [row[-1].text for row in table.rows] == ["laptop", "server"]
