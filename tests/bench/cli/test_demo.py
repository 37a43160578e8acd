"""``fedran demo`` and its tables."""

from io import StringIO

from rich.console import Console

from fedran.cli.tables import print_numbers
from fedran_bench.cli.demo import demo_runs, run_demo


def test_no_digit_is_cut_off_in_a_narrow_terminal():
    screen = StringIO()
    console = Console(file=screen, width=20)
    print_numbers(console, ["method", "accuracy", "bytes"], [["FedRAN-points", "98.3", "123456"]])
    assert screen.getvalue().splitlines()[-1].split() == ["FedRAN-points", "98.3", "123456"]
    assert console.width == 20


def test_demo_shows_what_the_project_claims():
    runs, steps = demo_runs(), []
    results = {r.label: r for r in run_demo(runs, steps.append)}
    assert len(steps) == sum(prepared.steps for prepared in runs)
    rows, groups = results["points, every row"], results["points, groups"]
    ours, paper = results["summaries"], results["summaries, paper"]
    exact, mean = results["Exact Gram"], results["FedNCM"]
    assert abs(ours.A_T - exact.A_T) < 1.0
    assert ours.A_avg >= paper.A_avg
    assert groups.max_upload < rows.max_upload < ours.max_upload / 5
    assert ours.max_upload * 10 < paper.max_upload < exact.max_upload
    assert max(ours.A_T, groups.A_T) < rows.A_T
    assert mean.A_T < ours.A_T - 5


def test_demo_prints_the_table_within_80_columns(cli):
    code, out, err = cli("demo")
    assert code == 0
    assert err == ""
    for word in (
        "FedRAN demo",
        "points, every row",
        "points, groups",
        "summaries, paper",
        "Exact Gram",
        "FedNCM",
        "A_avg",
        "Where to go",
    ):
        assert word in out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "…" not in out
