"""Repeats of a method are gathered over seeds, and their means are ranked."""

import numpy as np

from fedran_bench.results.grouping import by_setting, comparisons, groups
from helpers.bench.made_up import made_up


def test_mean_and_spread_are_those_of_numpy():
    runs = [made_up(seed=s, level=0.5 + s / 50) for s in range(4)]
    (group,) = groups(runs)
    values = [r.A_avg for r in runs]
    s = group.A_avg
    assert (s.mean, s.spread) == (np.mean(values), np.std(values, ddof=1))
    assert group.stat(lambda r: r.A_avg if r is runs[0] else None).spread is None
    assert group.stat(lambda r: None) is None


def test_a_seed_counts_once_and_the_newest_run_wins():
    (group,) = groups(
        [
            made_up(seed=1, config="a.toml"),
            made_up(seed=1, config="b.toml", date="2026-12-01"),
            made_up(seed=2, config="a.toml"),
        ]
    )
    assert len(group.results) == 2
    assert {r.config for r in group.results} == {"a.toml", "b.toml"}


def test_one_label_with_two_settings_becomes_two_names():
    found = groups([made_up(label="F", params={"rank": r, "M": 8}) for r in (16, 32)])
    assert [g.name for g in found] == ["F, r = 16", "F, r = 32"]


def test_a_run_that_accompanies_another_study_counts_only_if_there_is_no_other():
    main = [made_up(seed=s, params={"kind": "hellinger"}) for s in (1, 2)]
    beside = [made_up(seed=1, study=study) for study in ("training", "runtime", "speedup")]
    assert comparisons([*beside, *main]) == main
    assert comparisons(beside) == beside[:1]


def test_groups_keep_the_order_of_settings_and_methods_whatever_their_dates():
    runs = [
        made_up(key, dataset=d, beta=b, date=day)
        for day, d, b in (("2026-12-02", "x", 0.5), ("2026-12-01", "y", 0.1))
        for key in ("fedran", "afl")
    ]
    found = [(g.setting.dataset, g.key) for g in groups(runs)]
    assert found == [("x", "fedran"), ("x", "afl"), ("y", "fedran"), ("y", "afl")]


def test_settings_that_differ_in_beta_follow_each_other_from_the_most_skewed():
    places = [("x", 1.0), ("y", 0.5), ("x", 0.1)]
    found = by_setting(groups([made_up(dataset=d, beta=b) for d, b in places]))
    assert [(s.dataset, s.beta) for s in found] == [("x", 0.1), ("x", 1.0), ("y", 0.5)]
