"""Seconds, bytes and budgets of trained methods."""

import pytest

from fedran.bench.results.metrics import (
    budgets_met,
    rounds_per_task,
    seconds_at_rounds,
    seconds_with_forward_pass,
    upload_at_rounds,
)
from helpers.made_up import made_up
from helpers.made_up_trained import RESNET18_BYTES, heads, scratch


def test_a_closing_round_is_not_a_round_of_training():
    target = next(r for r in scratch(10) if r.key == "target")
    assert (target.tasks[0].rounds, rounds_per_task(target)) == (11, 10)
    assert seconds_at_rounds(target, 100) == pytest.approx(10 * 30.2 + 0.3)
    assert upload_at_rounds(target, 100) == 100 * RESNET18_BYTES
    assert seconds_with_forward_pass(target) == pytest.approx(30.5)
    odd = made_up(family="trained", params={"n_rounds": "many"}, rounds=4)
    assert rounds_per_task(odd) == 4


def test_a_frozen_head_meets_a_drift_budget_and_a_trained_network_does_not():
    budgets = {"drift": 0.5}
    assert budgets_met(heads(budgets=budgets)[0]) == {"drift": True}
    assert budgets_met(scratch(budgets=budgets)[0]) == {"drift": False}
