"""Forgetting, backward transfer, drift and budgets."""

from fedran.bench.report.tables.forgetting import forgetting_details, forgetting_tables
from helpers.made_up import METHODS, made_up
from helpers.made_up_trained import heads, scratch
from helpers.report_tables import texts


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
