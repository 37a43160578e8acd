"""A study names what runs are for, in configurations, in results and in results of before."""

import json
import re
import runpy
from pathlib import Path

import pytest

from fedran.bench.results.result import (
    ABLATIONS,
    DEFAULT_STUDY,
    STUDIES,
    Result,
    read_results,
)
from fedran.bench.run.config import load_config, parse_config
from fedran.bench.run.progress import PlainReporter
from fedran.bench.run.sweep import execute
from helpers.made_up import made_up

ROOT = Path(__file__).parents[3]
MIGRATION = ROOT / "benchmarks" / "migrate_results.py"
CONFIG = 'dataset = "digits"\n[stream]\ntasks = 2\nclients = 2\nbeta = 1\n[[method]]\nkey = "afl"\n'


def schema_2(result):
    fields = json.loads(result.to_json())
    for later in ("study", "A_avg", "A_T", "arguments"):
        del fields[later]
    return json.dumps({**fields, "schema": 2}, sort_keys=True)


def schema_3(result):
    fields = json.loads(result.to_json())
    for later in ("A_avg", "A_T", "arguments"):
        del fields[later]
    return json.dumps({**fields, "schema": 3}, sort_keys=True)


@pytest.fixture
def migrate():
    return runpy.run_path(str(MIGRATION))["migrate"]


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(text=CONFIG):
        (tmp_path / "any_name.toml").write_text(text)
        return execute(load_config("any_name.toml"), tmp_path / "out", PlainReporter())

    return run


def test_a_configuration_compares_methods_unless_it_names_a_study():
    method = {"key": "afl"}
    fields = {
        "dataset": "digits",
        "stream": {"tasks": 2, "clients": 2, "beta": 1},
        "method": [method],
    }
    assert parse_config(fields).study == DEFAULT_STUDY == "accuracy"
    assert parse_config({**fields, "study": "rank"}).study == "rank"
    for wrong, words in (
        ("ranks", "study must be one of accuracy, .*; got 'ranks' (did you mean 'rank'?)"),
        (3, "study must be text, got 3"),
    ):
        pattern = re.escape(words).replace(r"\.\*", ".*")
        with pytest.raises(ValueError, match=pattern):
            parse_config({**fields, "study": wrong})


def test_every_committed_configuration_names_its_study():
    files = list((ROOT / "configs").rglob("*.toml"))
    assert all("\nstudy = " in f.read_text() for f in files)
    assert {load_config(f).study for f in files} == set(STUDIES)
    assert set(STUDIES) >= ABLATIONS


def test_a_result_carries_the_study_whatever_the_file_is_called(sweep):
    (result,) = read_results([sweep('study = "rank"\n' + CONFIG).file])
    assert (result.study, result.config) == ("rank", "any_name.toml")


def test_a_finished_run_moves_to_another_study_without_running_again(sweep):
    sweep()
    outcome = sweep('study = "runtime"\n' + CONFIG)
    assert (outcome.done, outcome.skipped) == (0, 1)
    (result,) = read_results([outcome.file])
    assert result.study == "runtime"
    before = outcome.file.read_bytes()
    assert sweep('study = "runtime"\n' + CONFIG).file.read_bytes() == before


def test_a_line_with_an_unknown_study_is_refused():
    line = made_up().to_json().replace('"study": "accuracy"', '"study": "acuracy"')
    with pytest.raises(ValueError, match=r"got 'acuracy' \(did you mean 'accuracy'\?\)"):
        Result.from_json(line)


def test_a_line_of_schema_2_is_refused_and_names_the_migration():
    with pytest.raises(ValueError, match=r"got schema 2; benchmarks/migrate_results\.py"):
        Result.from_json(schema_2(made_up()))


def test_a_line_holds_the_averages_that_follow_from_its_accuracies():
    result = made_up()
    fields = json.loads(result.to_json())
    assert (fields["A_avg"], fields["A_T"]) == pytest.approx((result.A_avg, result.A_T), abs=1e-4)
    assert Result.from_json(json.dumps({**fields, "A_T": 0.0})).A_T == result.A_T


def test_a_line_of_schema_3_is_read_and_migrated(migrate, tmp_path):
    result = made_up(study="rank")
    assert Result.from_json(schema_3(result)) == result
    assert result.arguments is None
    file = tmp_path / "old.jsonl"
    file.write_text(schema_3(result) + "\n")
    assert migrate(file)
    assert file.read_text() == result.to_json() + "\n"
    assert not migrate(file)


@pytest.mark.parametrize(
    ("config", "study"),
    [
        ("configs/paper/rank.toml", "rank"),
        ("configs\\paper\\labels.toml", "labels"),
        ("configs/paper/scratch.toml", "training"),
        ("rank.toml", "accuracy"),
        ("", "accuracy"),
    ],
)
def test_migration_adds_the_study_and_changes_nothing_else(config, study, migrate, tmp_path):
    result = made_up(config=config)
    file = tmp_path / "old.jsonl"
    file.write_text(schema_2(result) + "\n")
    old_id = json.loads(file.read_text())["run_id"]
    assert migrate(file)
    (converted,) = read_results([file])
    assert converted == made_up(config=config, study=study)
    assert json.loads(file.read_text())["run_id"] == converted.run_id == old_id
    assert not migrate(file)


def test_a_sweep_goes_on_from_migrated_results(sweep, migrate):
    file = sweep().file
    (result,) = read_results([file])
    file.write_text(schema_2(result) + "\n")
    migrate(file)
    outcome = sweep()
    assert (outcome.done, outcome.skipped) == (0, 1)


def test_the_committed_results_are_migrated():
    files = list((ROOT / "results").glob("*.jsonl"))
    lines = [json.loads(line) for f in files for line in f.read_text().splitlines()]
    assert {fields["schema"] for fields in lines} <= {3, 4}
    for fields in lines:
        assert fields["run_id"] == Result.from_json(json.dumps(fields)).run_id
