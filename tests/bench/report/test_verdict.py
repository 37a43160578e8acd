"""The leaders of each kind of method, and the verdict: short, true, and fair when we lose."""

import re

import pytest

from fedran_bench.report.verdict import (
    ANALYTIC,
    HEAD,
    LINES,
    NETWORK,
    PAPER,
    POINTS,
    POOLED,
    SUMS,
    TUNED,
    leaders,
    main_setting,
    overall_verdict,
    quoted,
    strongest,
    verdict,
)
from fedran_bench.results.grouping import groups
from helpers.bench.made_up import METHODS, heads, made_up, scratch, vit


def test_every_kind_is_led_by_its_most_accurate_method():
    found = groups([*(made_up(**m) for m in METHODS if "family" not in m), *scratch(), *heads()])
    lead = leaders(found)
    assert lead[SUMS].name == "FedRAN"
    assert lead[PAPER].name == "FedRAN-paper"
    assert lead[ANALYTIC].name == "AFL"
    for kind in (HEAD, NETWORK):
        same = [g for g in found if lead[kind].name[-6:] == g.name[-6:]]
        assert lead[kind].A_T.mean == max(g.A_T.mean for g in same)


def test_runs_that_vary_the_size_of_a_message_do_not_lead():
    usual = made_up("fedran-points", "usual", level=0.7)
    fine = made_up("fedran-points", "fine", level=0.9, study="communication")
    assert leaders(groups([fine, usual]))[POINTS].name == "usual"
    assert leaders(groups([fine]))[POINTS].name == "fine"


def with_accuracy(name, accuracy, upload):
    return made_up(name, acc=[[accuracy]], tasks=1, test_rows=[1000], upload=upload)


@pytest.mark.parametrize(("large", "wanted"), [(0.7344, "small"), (0.7350, "large")])
def test_of_methods_that_are_tied_in_print_the_smallest_upload_wins(large, wanted):
    runs = [with_accuracy("large", large, 2000), with_accuracy("small", 0.734, 1000)]
    for order in (runs, runs[::-1]):
        assert strongest(groups(order)).name == wanted


def test_the_verdict_states_accuracies_and_bytes_as_measured():
    runs = [
        made_up("fedran", "FedRAN", upload=2**20),
        made_up("afl", "AFL", level=0.7, upload=2**22),
    ]
    ours, rival = verdict(groups(runs))
    assert f"FedRAN classifies {runs[0].A_T:.1f} %" in ours
    assert "1.00 MiB" in ours
    gap = runs[0].A_T - runs[1].A_T
    assert f"AFL: {runs[1].A_T:.1f} % with 4.00 MiB" in rival
    assert f"({gap:.1f} points less than FedRAN, 4.0 times the bytes)" in rival


def test_the_verdict_says_when_another_method_is_better_and_smaller():
    runs = [made_up("fedran", "FedRAN", level=0.5), made_up("x", "X", level=0.9, upload=100_000)]
    _, rival = verdict(groups(runs))
    assert re.search(r"X: .* points more than FedRAN, 10 times fewer bytes\)", rival)


@pytest.mark.parametrize(("label", "least"), [("Points", 1), ("Points, at least 5", 5)])
def test_quoted_points_say_their_least_group_once(label, least):
    params = {"group_size": 6, "min_group": least}
    (g,) = groups([made_up("fedran-points", label, params=params)])
    assert re.fullmatch(rf"Points, at least {least} rows? per group", quoted(g))
    assert quoted(g) in verdict([g])[0]


def test_the_verdict_quotes_points_of_every_row_and_points_without_single_rows():
    runs = [
        made_up("fedran", "FedRAN", level=0.9),
        made_up("fedran-points", "P", params={"group_size": 1, "min_group": 1}, level=0.8),
        made_up("fedran-points", "P5", params={"group_size": 5, "min_group": 5}, level=0.7),
        made_up("fedran-points", "P9", params={"group_size": 9, "min_group": 9}, level=0.6),
    ]
    first, second = verdict(groups(runs))
    assert first.startswith("P, every row classifies")
    assert second.startswith("P5, at least 5 rows per group (")


def test_a_method_on_a_fine_tuned_network_is_compared_with_ours_on_one():
    tuned = made_up(
        "stsa",
        "STSA (tuned)",
        level=0.87,
        tasks=10,
        beta=0.5,
        params={"task0": {}},
        dataset="cifar100-vit_ti16",
    )
    found = groups([*vit(), tuned])
    assert TUNED in leaders(found)
    lines = verdict(found)
    assert any("STSA (tuned)" in x and "than FedRAN (fine-tuned in task 0)" in x for x in lines)


@pytest.mark.parametrize(
    "runs", [vit(), [made_up(**m) for m in METHODS], scratch(), [made_up("x")]]
)
def test_a_verdict_has_one_to_six_lines(runs):
    assert 1 <= len(verdict(groups(runs))) <= LINES


def test_all_rows_in_one_place_are_never_called_the_best_method():
    runs = [made_up("joint", "Joint", level=0.99, family="reference"), made_up("x", "X", level=0.5)]
    first, last = verdict(groups(runs))
    assert first.startswith("X classifies")
    assert "all rows in one place (Joint)" in last
    assert POOLED in leaders(groups(runs))


def test_the_overall_verdict_counts_comparisons_and_names_the_worst():
    won = [made_up("fedran", dataset="a"), made_up("x", "X", level=0.5, dataset="a")]
    other = "vtab50-vit_s14"
    lost = [made_up("fedran", dataset=other, level=0.5), made_up("x", "X", dataset=other)]
    line = overall_verdict([*won, *lost])[-1]
    assert line.startswith("In 1 of 2 comparisons ")
    gap = lost[1].A_T - lost[0].A_T
    assert line.endswith(f"behind by at most {gap:.1f} points (X on VTAB-50, ViT-S/14, β = 0.1).")
    assert "behind" not in overall_verdict([*won, made_up("fedran", clients=9)])[-1]


def test_a_tie_is_not_called_the_most_accurate():
    won = [made_up("fedran", dataset="a"), made_up("x", "X", level=0.5, dataset="a")]
    tie = [made_up(key, dataset="b") for key in ("fedran", "others")]
    assert tie[0].A_T == tie[1].A_T
    line = overall_verdict([*won, *tie])[-1]
    assert line.startswith("In 1 of 2 comparisons ")
    assert "in 1 as accurate as the best other one" in line


def test_the_main_beta_has_the_most_methods_and_is_the_most_skewed_of_equals():
    both = [made_up("a", beta=b) for b in (0.5, 0.1)]
    assert main_setting(groups(both))[0].beta == 0.1
    setting, found = main_setting(groups([*both, made_up("b", beta=0.5)]))
    assert (setting.beta, len(found)) == (0.5, 2)
