"""Seconds per task, and the ratios of trained methods to FedRAN, worked out by hand."""

from fedran.bench.report.tables.runtime import runtime_tables, speedup_tables
from helpers.made_up import made_up
from helpers.made_up_trained import HEAD_BYTES, RESNET18_BYTES, fedran, heads, speedup
from helpers.report_tables import column, texts


def test_machines_are_not_mixed():
    runs = [made_up(seed=s, machine=m) for s in (1, 2) for m in ("laptop", "server")]
    (table,) = runtime_tables(runs)
    assert sorted(row[-1].text for row in table.rows) == ["laptop", "server"]
    assert table.rows[0][1].text == "1.00 ± 0.00"


def test_runs_that_shared_their_machine_are_left_out():
    shared = [made_up(key, side_by_side=4) for key in ("a", "b")]
    (table,) = runtime_tables([*shared, made_up("a", seed=2)])
    assert texts(table, "machine") == {"a": "Linux x86_64"}
    assert runtime_tables(shared) == []


def test_runs_made_to_measure_seconds_replace_all_others():
    own = made_up("afl", "AFL", seed=2, study="runtime")
    (table,) = runtime_tables([made_up("afl", "AFL"), own, *speedup(beta=0.1)])
    assert texts(table, "seeds")["AFL"] == "1"


def test_the_forward_pass_is_added_for_features_but_not_for_networks_on_images():
    (table,) = runtime_tables(speedup(beta=0.1))
    whole = texts(table, "Time with forward pass")
    assert whole["FedRAN"] == "3.00"
    assert whole["Finetune (head)"] == "4.50"
    assert whole["Finetune (from scratch)"] == "6.50"


def test_heads_have_no_printed_time():
    (table,) = runtime_tables(heads())
    assert set(texts(table, "Time, printed (RTX A5000)").values()) == {"-"}


def test_the_speed_up_ratios_agree_with_a_calculation_by_hand():
    (table,) = speedup_tables(speedup(2))
    # FedRAN: 0.7 s client, 0.3 s server, 2 s forward. A head: 100 rounds, 2.2 + 0.3 s.
    # A network: 2 rounds, 6.2 + 0.3 s, so 310.3 s at 100.
    assert texts(table, "s", "Time")["FedRAN"] == "1.00"
    faster = texts(table, "ratio to FedRAN", "Time")
    assert faster["TARGET (head)"] == "2.5x"
    assert faster["TARGET (from scratch)"] == "6.5x"
    forward = texts(table, "with forward pass", "Time")
    assert forward["TARGET (head)"] == "1.5x"
    assert forward["TARGET (from scratch)"] == "2.17x"
    both = texts(table, "both: 100 rounds, forward pass", "Time")
    assert both["FedRAN"] == "1x"
    assert both["TARGET (from scratch)"] == "103x"  # 310.3 s over FedRAN's 3 s
    smaller = texts(table, "ratio to FedRAN", "largest upload")
    assert smaller["Finetune (head)"] == f"{HEAD_BYTES / 1e4:.3g}x"


def test_only_extrapolated_ratios_are_muted():
    (table,) = speedup_tables(speedup(2))
    time = column(table, "at 100 rounds, computed", "Time")
    assert (time["TARGET (from scratch)"].text, time["TARGET (from scratch)"].muted) == (
        "310x",
        True,
    )
    assert (time["TARGET (head)"].text, time["TARGET (head)"].muted) == ("2.5x", False)
    upload = texts(table, "at 100 rounds, computed", "largest upload")
    assert upload["Finetune (from scratch)"] == f"{RESNET18_BYTES / 1e4:.0f}x"


def test_the_papers_ratios_stand_beside_networks_and_not_beside_heads():
    (table,) = speedup_tables(speedup())
    speed, size = column(table, "printed", "Time"), column(table, "printed", "largest upload")
    assert speed["TARGET (from scratch)"].text == "90.4x"
    assert size["TARGET (from scratch)"].text == "31.9x"
    assert size["Finetune (from scratch)"].text == speed["TARGET (head)"].text == "-"
    assert all(c.muted for c in speed.values())
    for figure in ("96.9x", "31.9x", "6.5x FedRAN's, at 100 rounds 310x"):
        assert figure in table.note


def test_a_speed_up_needs_both_sides_alone_on_one_machine():
    assert speedup_tables([fedran(), *heads()]) == []
    assert speedup_tables(speedup(side_by_side=2)) == []
    assert speedup_tables(speedup()[1:]) == []
    assert speedup_tables(speedup()[:1]) == []
    assert speedup_tables([*speedup()[:1], *speedup(machine="other")[1:]]) == []
    tables = speedup_tables(speedup() + speedup(machine="other") + speedup(beta=1.0))
    assert len(tables) == 3
    assert sum("other" in t.note for t in tables) == 1


def test_without_timed_backbone_and_paper_there_are_dashes_and_no_printed_column():
    (table,) = speedup_tables(speedup(forward=None, dataset="digits"))
    assert set(texts(table, "with forward pass", "Time").values()) == {"-"}
    assert "printed" not in [c.text for c in table.columns]
