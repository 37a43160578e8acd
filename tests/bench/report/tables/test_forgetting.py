"""Forgetting, budgets, and drift on the reference rows."""

from fedran.bench.report.tables.drift import drift_tables
from fedran.bench.report.tables.forgetting import forgetting_details, forgetting_tables
from helpers.made_up import METHODS, made_up
from helpers.made_up_trained import fedran, heads, scratch
from helpers.report_tables import column, texts

DRIFT, ACCURACY = "drift after", "accuracy on the reference rows after, %"


def test_drift_and_budgets_are_listed_by_method():
    table = forgetting_tables([made_up(**m) for m in METHODS])[0]
    assert texts(table, "drift")["FedRAN"] == "0 (frozen)"
    assert texts(table, "drift")["Finetune"] == "0.5"
    assert texts(table, "budgets")["FedRAN"] == "none set"
    assert texts(table, "budgets")["Finetune"] == "bytes missed by 1 of 1 runs, drift met"


def test_without_budgets_there_is_no_such_column():
    (table,) = forgetting_tables([made_up()])
    assert "budgets" not in [c.text for c in table.columns]


def test_a_network_without_recorded_drift_has_a_dash_and_a_head_zero():
    network = scratch(drift=[])[0]
    (table,) = forgetting_tables([heads()[0], network])
    assert texts(table, "drift") == {"Finetune (head)": "0 (frozen)", network.label: "-"}


def test_the_most_forgotten_classes_are_named():
    right = [[50, 40], [10, 40, 50, 50]]
    r = made_up(tasks=2, class_right=right, class_rows=[50] * 4)
    per_task, worst = forgetting_details([r])
    assert per_task.exported
    assert worst.exported
    assert [c.text for c in worst.rows[0][1:4]] == [
        "80.0, -80.0 (class 0, t1)",
        "0.0, +0.0 (class 1, t1)",
        "-",
    ]


def test_drift_and_accuracy_on_the_reference_rows_of_trained_methods_and_fedran():
    (table,) = drift_tables([fedran(), made_up("afl"), *heads(), *scratch()])
    last = texts(table, "drift after the last task")
    assert (last["Finetune (from scratch)"], last["FedRAN"]) == ("1.3", "0")
    assert "afl" not in last
    accuracy = texts(table, "the last task", ACCURACY)
    assert (accuracy["FedRAN"], accuracy["Finetune (head)"]) == ("84.0", "30.0")


def test_results_without_reference_accuracy_have_dashes():
    (table,) = drift_tables([made_up(), *scratch(reference_acc=[])])
    assert {c.text for c in column(table, "the last task", ACCURACY).values()} == {"-"}


def test_without_drift_there_is_no_drift_table():
    assert drift_tables([fedran(), *heads()]) == []
