"""Commands, dates, seeds and run ids of the results."""

from fedran.bench.report.tables.provenance import command_table, run_table
from fedran.bench.report.tables.table import Table, full_command
from helpers.made_up import made_up


def test_a_command_has_the_options_that_its_machine_implies():
    run = made_up(config="a.toml", machine="Linux, NVIDIA H200", side_by_side=3)
    assert full_command(run) == "fedran run a.toml --device cuda --jobs 3"
    changed = made_up(config="a.toml", arguments=["a.toml", "--set", "stream={file='x y'}"])
    assert full_command(changed) == """fedran run a.toml --set 'stream={file='"'"'x y'"'"'}'"""
    assert full_command(made_up(config="")) == "a command that is not recorded"


def test_each_command_has_one_row_with_dates_seeds_and_versions():
    runs = [made_up(seed=s, date=f"2026-11-1{s}") for s in (1, 2)]
    (row,) = command_table([*runs, made_up("afl", seed=1, date="2026-11-11")]).rows
    assert [c.text for c in row] == [
        "fedran run configs/paper/accuracy.toml",
        "2026-11-11 to 2026-11-12",
        "3",
        "order, partition 1, 2; projection 0",
        "Linux x86_64",
        "fedran 0.2.0, numpy 2.0.0, scipy 1.0.0",
    ]


def test_results_that_do_not_record_their_arguments_are_named_as_such():
    words = "do not record what --set changed"
    assert words in command_table([made_up(), made_up(arguments=["a.toml"], seed=2)]).note
    assert words not in command_table([made_up(arguments=["a.toml"])]).note


def test_every_method_is_listed_with_its_run_ids():
    runs = [made_up(seed=s) for s in (1, 2)]
    (row,) = run_table(runs).rows
    assert ", ".join(r.run_id[:8] for r in runs) in [c.text for c in row]


def test_a_table_knows_the_commands_and_dates_of_its_results():
    table = Table("t", [], results=[made_up(config=c, date="2026-11-15") for c in "aab"])
    assert table.commands == ["fedran run a", "fedran run b"]
    assert table.dates == "2026-11-15"
