"""Experiment files: what they expand to, and what a wrong one is told."""

import re
from pathlib import Path

import pytest

from fedran_bench.run.config import LARGEST_SWEEP, load_config, parse_config
from fedran_bench.run.job import jobs
from helpers.bench.small_sweep import TWO_METHODS

ROOT = Path(__file__).parents[3]
COMMITTED = sorted((ROOT / "configs").rglob("*.toml"))


def fields(**more):
    stream = {"tasks": 5, "clients": 5, "beta": 0.1}
    return {"dataset": "digits", "stream": stream, "method": [{"key": "fedncm"}], **more}


def with_stream(**more):
    found = fields()
    found["stream"] = {k: v for k, v in {**found["stream"], **more}.items() if v is not None}
    return found


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_no_run_of_a_committed_configuration_occurs_twice(path):
    experiment = load_config(path)
    found = jobs(experiment)
    assert found
    assert len({(j.dataset, j.stream, j.choice.label, str(j.choice.params)) for j in found}) == len(
        found
    )
    assert experiment.name != path.stem


def test_lists_in_a_configuration_expand_to_every_combination(two_methods):
    experiment = two_methods(
        TWO_METHODS.replace("beta = 0.1", "beta = [0.1, 1]\nseed = [1, 2, 3]")
        .replace("rank = 8", "rank = [8, 16]\nout_features = [32, 64]")
        .replace('"digits"', '["digits", "har-dsa19"]')
    )
    found = jobs(experiment)
    assert len(found) == 2 * (2 * 3) * (4 + 1)
    assert len({str(j) for j in found}) == len(found)
    ranks = [j.choice.params["rank"] for j in found if j.choice.key == "fedran"]
    assert set(ranks) == {8, 16}


def test_defaults_of_a_short_configuration(two_methods):
    experiment = two_methods()
    assert experiment.name == "c"
    assert dict(experiment.streams[0]) == {
        "tasks": 5,
        "clients": 5,
        "beta": 0.1,
        "seed": 1993,
        "partitioner": "dirichlet",
    }
    assert [m.label for m in experiment.methods] == ["FedRAN", "FedNCM"]


def test_only_restricts_a_method_to_some_streams():
    experiment = parse_config(
        fields(
            stream={"tasks": 5, "clients": 5, "beta": [0.1, 0.5, 1.0], "seed": [1, 2]},
            method=[
                {"key": "fedncm"},
                {"key": "afl", "only": {"beta": 0.5}},
                {"key": "fed3r", "only": {"beta": [0.1, 1.0], "seed": 2}},
            ],
        )
    )
    found = [
        (j.choice.key, dict(j.stream)["beta"], dict(j.stream)["seed"]) for j in jobs(experiment)
    ]
    assert len(found) == 6 + 2 + 2
    assert {f for f in found if f[0] == "afl"} == {("afl", 0.5, 1), ("afl", 0.5, 2)}
    assert {f for f in found if f[0] == "fed3r"} == {("fed3r", 0.1, 2), ("fed3r", 1.0, 2)}


def test_a_table_task0_is_part_of_a_method_and_may_be_a_sweep_too():
    method = {"key": "exact", "lam": [1.0, 2.0], "task0": {"lr": [0.1, 0.2], "epochs": 3}}
    found = parse_config(fields(method=[method])).methods
    assert [(m.params["lam"], m.params["task0"]["lr"]) for m in found] == [
        (1.0, 0.1),
        (1.0, 0.2),
        (2.0, 0.1),
        (2.0, 0.2),
    ]
    assert {m.label for m in found} == {"Exact Gram (fine-tuned in task 0)"}
    described = [str(job) for job in jobs(parse_config(fields(method=[method])))]
    assert len(set(described)) == 4
    assert "lam 1.0, lr 0.1, epochs 3 on digits" in described[0]
    empty = parse_config(fields(method=[{"key": "exact", "task0": {}}])).methods
    assert empty[0].params == {"task0": {}}


@pytest.mark.parametrize(
    "stream",
    [
        {"tasks": 5, "partitioner": "natural"},
        {"tasks": 5, "partitioner": "iid", "clients": 3},
    ],
)
def test_settings_that_a_stream_does_not_need_may_be_left_out(stream):
    assert len(parse_config(fields(stream=stream)).streams) == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "the configuration needs the setting 'dataset', found nothing"),
        ({"dataset": "digits"}, "the configuration needs the setting 'method', found dataset"),
        (fields(datset="x"), "the configuration has no setting 'datset' (did you mean 'dataset'?)"),
        (fields(stream=[]), "stream must be a table, got []"),
        (with_stream(beta=[0.1, "x"]), "stream.beta must be a number or none, got 'x'"),
        (with_stream(beta=[]), "beta is an empty list"),
        (with_stream(partitioner="drichlet"), "got 'drichlet' (did you mean 'dirichlet'?)"),
        (fields(dataset=[]), "dataset is an empty list"),
        (fields(method={"key": "afl"}), "methods are written as [[method]] tables"),
        (fields(method=[]), "expected at least one [[method]]"),
        (fields(method=[{"rank": 3}]), "a [[method]] needs a key; one of fedran-points, "),
        (fields(method=[{"key": "fedrun"}]), "no method 'fedrun' (did you mean 'fedran'?)"),
        (fields(method=[{"key": "fedran", "rnk": 3}]), "no setting 'rnk' (did you mean 'rank'?)"),
        (fields(method=[{"key": "fedran", "rank": [8, 0.5]}]), "rank must be an integer, got 0.5"),
        (fields(method=[{"key": "fedran", "rank": []}]), "rank is an empty list"),
        (
            fields(method=[{"key": "afl", "only": {"bta": 0.1}}]),
            "only of method 'afl' has no setting 'bta' (did you mean 'beta'?)",
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name_and_the_expected_value(wrong, words):
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        parse_config(wrong)
    assert "\n" not in str(refusal.value)


def test_sweeps_that_are_too_large_are_refused_before_they_are_made():
    seeds = list(range(1000))
    with pytest.raises(ValueError, match=f"sweep has 1000000 .* at most {LARGEST_SWEEP}"):
        parse_config(with_stream(seed=seeds, tasks=[*seeds[1:], 1000]))
    method = {"key": "fedran", "rank": list(range(1, 1001)), "out_features": seeds[1:]}
    with pytest.raises(ValueError, match="the sweep has"):
        parse_config(fields(method=[method]))


def test_errors_name_the_file(two_methods, tmp_path):
    with pytest.raises(ValueError, match=r"c\.toml: not valid TOML: "):
        two_methods("dataset = ")
    with pytest.raises(ValueError, match=r"c\.toml: the configuration has no setting"):
        two_methods("x = 1\n" + TWO_METHODS)
    (tmp_path / "b.toml").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"b\.toml: not valid TOML"):
        load_config(tmp_path / "b.toml")
    with pytest.raises(FileNotFoundError, match=r"n\.toml: no such file; expected a config"):
        load_config(tmp_path / "n.toml")
    with pytest.raises(FileNotFoundError, match="this is a folder"):
        load_config(tmp_path)


def test_results_name_the_configuration_relative_to_the_working_folder(
    two_methods, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    two_methods()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "d.toml").write_text(TWO_METHODS)
    assert load_config(tmp_path / "sub" / "d.toml").source == "sub/d.toml"
    assert load_config("sub/../c.toml").source == "c.toml"
    monkeypatch.chdir(tmp_path / "sub")
    assert load_config("../c.toml").source == "c.toml"
    assert jobs(load_config("d.toml"))[0].prepare().config == "d.toml"


def test_a_method_that_runs_on_no_stream_is_left_out_unless_it_is_the_last():
    only = [{"key": "afl", "only": {"seed": 1}}, {"key": "fed3r", "only": {"seed": 2}}]
    run = jobs(parse_config(fields(method=only, stream={"seed": 1, "clients": 2, "beta": 0.5})))
    assert [job.choice.key for job in run] == ["afl"]
    with pytest.raises(ValueError, match=r"no method runs on this stream.*fed3r: {'seed': 2}"):
        parse_config(fields(method=only, stream={"seed": 3, "clients": 2, "beta": 0.5}))


@pytest.mark.parametrize(
    "stream",
    [
        {"partitioner": ["dirichlet", "iid"]},
        {"tasks": [2, 5]},
        {"label_rate": [0.5, 1.0]},
    ],
)
def test_every_run_of_a_sweep_has_its_own_description(stream):
    found = jobs(parse_config(with_stream(**stream)))
    assert len({str(j) for j in found}) == len(found)
