"""A study names what runs are for, in configurations and in results."""

import json
import re
from pathlib import Path

import pytest

from fedran_bench.results.result import (
    ABLATIONS,
    DEFAULT_STUDY,
    STUDIES,
    Result,
    read_results,
)
from fedran_bench.run.config import load_config, parse_config
from fedran_bench.run.progress import Reporter
from fedran_bench.run.sweep import execute
from helpers.bench.made_up import made_up

ROOT = Path(__file__).parents[3]
CONFIG = 'dataset = "digits"\n[stream]\ntasks = 2\nclients = 2\nbeta = 1\n[[method]]\nkey = "afl"\n'


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(text=CONFIG):
        (tmp_path / "any_name.toml").write_text(text)
        return execute(load_config("any_name.toml"), tmp_path / "out", Reporter())

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


def test_a_run_of_another_study_is_run_again_under_that_study(sweep):
    sweep()
    outcome = sweep('study = "runtime"\n' + CONFIG)
    assert (outcome.done, outcome.skipped) == (1, 0)
    (result,) = read_results([outcome.file])
    assert result.study == "runtime"


def test_a_line_with_an_unknown_study_is_refused():
    line = made_up().to_json().replace('"study": "accuracy"', '"study": "acuracy"')
    with pytest.raises(ValueError, match=r"got 'acuracy' \(did you mean 'accuracy'\?\)"):
        Result.from_json(line)


def test_a_line_of_another_schema_is_refused():
    line = made_up().to_json().replace('"schema": 4', '"schema": 3')
    with pytest.raises(ValueError, match="of schema 4, got schema 3; run the configuration again"):
        Result.from_json(line)


def test_a_line_holds_the_averages_that_follow_from_its_accuracies():
    result = made_up()
    fields = json.loads(result.to_json())
    assert (fields["A_avg"], fields["A_T"]) == pytest.approx((result.A_avg, result.A_T), abs=1e-4)
    assert Result.from_json(json.dumps({**fields, "A_T": 0.0})).A_T == result.A_T


def test_the_committed_results_are_read_and_have_the_ids_of_their_runs():
    files = list((ROOT / "results").glob("*.jsonl"))
    for line in [line for f in files for line in f.read_text().splitlines()]:
        assert json.loads(line)["run_id"] == Result.from_json(line).run_id
