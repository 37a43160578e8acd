"""A sweep runs nothing twice and loses nothing, whenever it was interrupted."""

import json

import pytest

from fedran_bench.results.result import Result, finished
from fedran_bench.run.sweep import execute
from helpers.bench.listener import Listener, Stopper
from helpers.bench.small_sweep import CONFIG, measured, steps


def test_every_run_is_one_line_of_results(config, tmp_path):
    listener = Listener()
    outcome = execute(config(), tmp_path / "out", listener)
    assert (outcome.done, outcome.skipped, outcome.failed) == (4, 0, ())
    assert outcome.file == tmp_path / "out" / "c.jsonl"
    lines = outcome.file.read_text().splitlines()
    assert len(lines) == 4
    assert {json.loads(line)["config"] for line in lines} == {"c.toml"}
    assert {json.loads(line)["side_by_side"] for line in lines} == {1}
    assert len(listener.of("finished")) == len(listener.of("start")) == 4
    assert len(listener.of("step")) == sum(map(steps, listener.planned))


def test_a_second_sweep_runs_nothing(config, tmp_path):
    first = execute(config(), tmp_path / "out", Listener())
    before = first.file.read_bytes()
    listener = Listener()
    second = execute(config(), tmp_path / "out", listener)
    assert (second.done, second.skipped) == (0, 4)
    assert listener.planned == []
    assert listener.skipped == 4
    assert first.file.read_bytes() == before


def test_a_missing_result_is_run_again_with_the_same_outcome(config, tmp_path):
    file = execute(config(), tmp_path / "out", Listener()).file
    before = measured(file)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:1] + lines[2:]))
    listener = Listener()
    outcome = execute(config(), tmp_path / "out", listener)
    assert (outcome.done, outcome.skipped) == (1, 3)
    assert listener.planned[0].choice.label == Result.from_json(lines[1]).label
    assert measured(file) == before


def test_a_wider_sweep_runs_only_what_is_new(config, tmp_path):
    execute(config(), tmp_path / "out", Listener())
    wider = execute(config(CONFIG, "stream.seed=[1,2,3]"), tmp_path / "out", Listener())
    assert (wider.done, wider.skipped) == (2, 4)


def test_a_last_line_that_was_cut_off_is_repaired(config, tmp_path):
    file = execute(config(), tmp_path / "out", Listener()).file
    before = measured(file)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:3]) + lines[3][:200])
    assert len(finished(file)) == 3
    assert file.read_text() == "".join(lines[:3])
    file.write_text("".join(lines[:3]) + lines[3][:200])
    assert execute(config(), tmp_path / "out", Listener()).done == 1
    assert measured(file) == before


@pytest.mark.parametrize("line", ["hello", "[]", "{}", '{"schema": 1, "run_id": 0}', ""])
def test_a_foreign_line_is_refused_with_its_number(line, config, tmp_path):
    file = execute(config(CONFIG, "methods=fedncm"), tmp_path / "out", Listener()).file
    text = file.read_text() + line + "\n"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"c\.jsonl, line 3: .*move the file away") as refusal:
        execute(config(), tmp_path / "out", Listener())
    assert "\n" not in str(refusal.value)
    assert file.read_text() == text


def test_an_interrupt_after_a_run_does_not_lose_it(config, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        execute(config(), tmp_path / "out", Stopper("finished", 0))
    outcome = execute(config(), tmp_path / "out", Listener())
    assert (outcome.done, outcome.skipped) == (3, 1)
    straight = execute(config(), tmp_path / "straight", Listener())
    assert measured(outcome.file) == measured(straight.file)
