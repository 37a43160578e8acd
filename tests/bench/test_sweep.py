"""Sweeps: nothing is run twice, nothing is lost, one failure does not stop the others."""

import functools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedran.bench.results.result import Result, finished, read_results
from fedran.bench.run import memory, workers
from fedran.bench.run.__main__ import main
from fedran.bench.run.checkpoint import Checkpoint
from fedran.bench.run.config import load_config, parse_config
from fedran.bench.run.job import jobs
from fedran.bench.run.sweep import execute
from fedran.bench.run.workers import THREADS
from fedran.data.catalogue import digits
from fedran.data.stream import make_stream
from fedran.data.stream_file import load_stream, save_stream
from helpers.made_up import made_up

CONFIG = """
dataset = "digits"
[stream]
tasks = 2
clients = 2
beta = 0.5
seed = [1, 2]
[budgets]
bytes = 1e6
[[method]]
key = "fedncm"
[[method]]
key = "fedran"
out_features = 32
rank = 4
"""
BROKEN = '\n[[method]]\nkey = "finetune"\nnetwork = "small"\nweights = "broken.safetensors"\n'
"""A method that fails when it runs: ``config`` writes a file that holds no weights."""


class Listener:
    """A reporter that remembers."""

    def __init__(self):
        self.planned, self.skipped, self.heard = [], 0, []

    def begin(self, planned, skipped, workers):
        self.planned, self.skipped, self.workers = list(planned), skipped, workers

    def __getattr__(self, name):
        if name not in ("learn", "start", "step", "finished", "failed", "note"):
            raise AttributeError(name)
        return lambda *what: self.heard.append((name, *what))

    def of(self, kind):
        return [h[1:] for h in self.heard if h[0] == kind]


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text=CONFIG, *overrides):
        (tmp_path / "c.toml").write_text(text)
        (tmp_path / "broken.safetensors").write_text("no weights")
        return load_config(tmp_path / "c.toml", overrides)

    return write


def measured(file):
    """What does not depend on the clock, by run."""
    return {
        (r.key, r.seeds["order"]): (r.acc, [t.bytes_up for t in r.tasks], r.run_id)
        for r in read_results([file])
    }


def test_every_run_is_one_line_of_results(config, tmp_path):
    listener = Listener()
    outcome = execute(config(), tmp_path / "out", listener)
    assert (outcome.done, outcome.skipped, outcome.failed) == (4, 0, ())
    assert outcome.file == tmp_path / "out" / "c.jsonl"
    lines = outcome.file.read_text().splitlines()
    assert len(lines) == 4
    assert {json.loads(line)["config"] for line in lines} == {"c.toml"}
    assert {json.loads(line)["side_by_side"] for line in lines} == {1}
    assert all(json.loads(line)["budgets"] == {"bytes": 1e6} for line in lines)
    assert len(listener.of("finished")) == len(listener.of("start")) == 4
    assert len(listener.of("step")) == sum(steps for _, _, steps in listener.planned)
    assert not (tmp_path / "out" / "checkpoints").exists() or not any(
        (tmp_path / "out" / "checkpoints").iterdir()
    )


def test_a_second_sweep_runs_nothing(config, tmp_path):
    first = execute(config(), tmp_path / "out", Listener())
    before = first.file.read_bytes()
    listener = Listener()
    second = execute(config(), tmp_path / "out", listener)
    assert (second.done, second.skipped) == (0, 4)
    assert listener.planned == []
    assert listener.skipped == 4
    assert len(listener.of("learn")) == 4
    assert first.file.read_bytes() == before


def test_what_is_missing_is_run_again_and_comes_out_the_same(config, tmp_path):
    file = execute(config(), tmp_path / "out", Listener()).file
    before = measured(file)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:1] + lines[2:]))
    listener = Listener()
    outcome = execute(config(), tmp_path / "out", listener)
    assert (outcome.done, outcome.skipped) == (1, 3)
    assert listener.planned[0][1] == Result.from_json(lines[1]).label
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


@pytest.mark.parametrize("line", ["hello", "{}", '{"schema": 1, "run_id": 0}', ""])
def test_a_foreign_line_is_refused_with_its_number(line, config, tmp_path):
    file = execute(config(CONFIG, "methods=fedncm"), tmp_path / "out", Listener()).file
    text = file.read_text() + line + "\n"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"c\.jsonl, line 3: .*move the file away") as refusal:
        execute(config(), tmp_path / "out", Listener())
    assert "\n" not in str(refusal.value)
    assert file.read_text() == text


def test_a_run_that_fails_is_reported_and_the_others_go_on(config, tmp_path):
    pytest.importorskip("torch")
    text = CONFIG.replace("[[method]]", BROKEN + "[[method]]", 1)
    listener = Listener()
    outcome = execute(config(text), tmp_path / "out", listener)
    assert outcome.done == 4
    assert len(outcome.failed) == 2
    assert all("Finetune" in f and "a safetensors file" in f for f in outcome.failed)
    assert len(listener.of("failed")) == 2
    assert len(read_results([outcome.file])) == 4
    again = execute(config(text), tmp_path / "out", Listener())
    assert (again.done, again.skipped, len(again.failed)) == (0, 4, 2)


def test_running_out_of_memory_is_a_failure_of_that_run_only(config, tmp_path, monkeypatch):
    real = workers.run

    def greedy(job, **more):
        if job.key == "fedran":
            raise MemoryError
        return real(job, **more)

    monkeypatch.setattr(workers, "run", greedy)
    outcome = execute(config(), tmp_path / "out", Listener())
    assert outcome.done == 2
    assert all(f.endswith(": MemoryError") for f in outcome.failed)


def test_side_by_side_gives_the_same_results_and_says_so(config, tmp_path):
    pytest.importorskip("torch")
    text = CONFIG.replace("seed = [1, 2]", "seed = 1") + BROKEN
    alone = execute(config(text), tmp_path / "alone", Listener())
    threads = {name: os.environ.get(name) for name in THREADS}
    listener = Listener()
    both = execute(config(text), tmp_path / "both", listener, workers=2)
    assert measured(both.file) == measured(alone.file)
    assert {r.side_by_side for r in read_results([both.file])} == {2}
    assert {r.side_by_side for r in read_results([alone.file])} == {1}
    assert both.done == 2
    assert sorted(both.failed) == sorted(alone.failed)
    assert len(both.failed) == 1
    assert len(listener.of("start")) == 3
    steps = {run: n for run, _, n in listener.planned if "Finetune" not in run}
    assert Counter(run for run, _ in listener.of("step")) == steps
    assert len(listener.of("finished")) == 2
    assert {name: os.environ.get(name) for name in THREADS} == threads


def test_little_memory_means_fewer_processes(config, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 600 * 2**20)
    listener = Listener()
    outcome = execute(config(CONFIG, "methods=fedncm"), tmp_path / "out", listener, workers=3)
    assert listener.of("note") == [
        ("1 of 3 processes: a run may take 0.4 GiB of 0.6 GiB available",)
    ]
    assert {r.side_by_side for r in read_results([outcome.file])} == {1}


@pytest.mark.parametrize(("free", "expected"), [(None, 4), (100 * 2**30, 4), (2**30, 2), (1, 1)])
def test_processes_fit_into_memory(free, expected, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: free)
    listener = Listener()
    assert memory.affordable(4, memory.Needs(460 * 2**20), None, listener) == expected
    assert len(listener.of("note")) == (expected < 4)


def needs_of(key, **params):
    method = {"key": key, **params}
    stream = {"tasks": 2, "clients": 2, "beta": 1.0}
    experiment = parse_config({"dataset": "digits", "stream": stream, "method": [method]})
    return memory.estimated_needs(jobs(experiment)[0].prepare())


def test_larger_runs_are_expected_to_take_more_memory():
    host = lambda *given, **params: needs_of(*given, **params).host  # noqa: E731
    assert host("fedran", out_features=4096) > host("fedran", out_features=1024)
    assert host("exact", out_features=4096) > host("fedran", out_features=4096)
    assert host("fedncm") > memory.BASE_MEMORY


def test_training_is_expected_to_take_weights_activations_and_replay():
    pytest.importorskip("torch")
    small, large = (needs_of("finetune", network=n).host for n in ("small", "resnet18"))
    assert large - small > 8 * 4 * 11_000_000
    wide = needs_of("finetune", network="resnet18", batch=512).host
    assert wide > large
    assert needs_of("target", network="small").host > small


def test_a_run_that_would_not_fit_says_so_before_it_starts(config, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 450 * 2**20)
    listener = Listener()
    text = CONFIG + '\n[[method]]\nkey = "exact"\nout_features = 8192\n'
    outcome = execute(config(text), tmp_path / "out", listener)
    assert outcome.done == 4
    assert [reason for _, reason in listener.of("failed")] == [
        "it would not fit: about 1.7 GiB of memory needed, 0.4 GiB available; take fewer clients, "
        "a smaller batch or network, or another machine"
    ] * 2
    assert sum(steps == 0 for _, _, steps in listener.planned) == 2
    assert len(listener.of("start")) == 4


def test_an_accelerator_has_a_memory_of_its_own(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**40)
    monkeypatch.setattr(memory, "free_accelerator_memory", lambda device: 2**30)
    memory.require_fit(memory.Needs(2**30), None)
    with pytest.raises(ValueError, match=r"2\.0 GiB of memory on cuda needed, 1\.0 GiB available"):
        memory.require_fit(memory.Needs(2**30, 2**31), "cuda")
    listener = Listener()
    assert memory.affordable(4, memory.Needs(2**20, 2**29), "cuda", listener) == 1


class Stopper(Listener):
    """A reporter that is interrupted at the n-th call of one kind."""

    def __init__(self, kind, at):
        super().__init__()
        self.kind, self.at = kind, at

    def __getattr__(self, name):
        heard = super().__getattr__(name)
        return self.stop_or(heard) if name == self.kind else heard

    def stop_or(self, heard):
        def call(*what):
            self.at -= 1
            if self.at < 0:
                raise KeyboardInterrupt
            heard(*what)

        return call


@pytest.mark.parametrize(
    ("kind", "at", "done"), [("step", 0, 0), ("step", 4, 0), ("step", 9, 1), ("start", 2, 2)]
)
def test_an_interrupted_sweep_goes_on(kind, at, done, config, tmp_path, monkeypatch):
    straight = measured(execute(config(), tmp_path / "straight", Listener()).file)
    monkeypatch.setattr(workers, "Checkpoint", functools.partial(Checkpoint, seconds=0))
    with pytest.raises(KeyboardInterrupt):
        execute(config(), tmp_path / "out", Stopper(kind, at))
    listener = Listener()
    outcome = execute(config(), tmp_path / "out", listener)
    assert (outcome.done, outcome.skipped) == (4 - done, done)
    assert measured(outcome.file) == straight
    before = [h for h in listener.of("step") if "done before" in h[1]]
    assert len(before) == (3 if (kind, at) in (("step", 4), ("step", 9)) else 0)
    assert not any((tmp_path / "out" / "checkpoints").iterdir())


def test_an_interrupt_after_a_run_does_not_lose_it(config, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        execute(config(), tmp_path / "out", Stopper("finished", 0))
    assert execute(config(), tmp_path / "out", Listener()).skipped == 1


def test_a_stream_file_takes_the_place_of_settings(config, tmp_path):
    made = make_stream(digits().y_train, n_tasks=2, n_clients=2, beta=0.5, seed=1)
    save_stream(made, tmp_path / "s.json")
    text = 'dataset = "digits"\n[stream]\nfile = "s.json"\n[[method]]\nkey = "fedncm"\n'
    by_file = measured(execute(config(text), tmp_path / "file", Listener()).file)
    text = CONFIG.replace("seed = [1, 2]", "seed = 1")
    by_settings = measured(execute(config(text), tmp_path / "settings", Listener()).file)
    assert by_file["fedncm", 1] == by_settings["fedncm", 1]


def test_streams_are_kept_as_files_that_can_be_run_again(config, tmp_path):
    folder = tmp_path / "new" / "streams"
    outcome = execute(config(), tmp_path / "out", Listener(), streams=folder)
    kept = sorted(folder.iterdir())
    results = {r.hashes["stream"]: r for r in read_results([outcome.file])}
    assert [p.name for p in kept] == sorted(f"digits-{h[:12]}.json" for h in results)
    assert {load_stream(p).hash for p in kept} == set(results)
    before = [p.stat().st_mtime_ns for p in kept]
    execute(config(), tmp_path / "out", Listener(), streams=folder)
    assert [p.stat().st_mtime_ns for p in sorted(folder.iterdir())] == before


def test_seconds_per_row_come_from_the_configuration_where_the_dataset_knows_none(config, tmp_path):
    experiment = config(CONFIG, "run.seconds_per_row=0.5", "methods=fedncm")
    outcome = execute(experiment, tmp_path / "out", Listener())
    for r in read_results([outcome.file]):
        total = sum(sum(t.seconds.extraction) for t in r.tasks)
        assert total == pytest.approx(0.5 * len(digits().y_train))


def test_the_gram_error_is_recorded_where_asked_for(config, tmp_path):
    outcome = execute(config(CONFIG, "run.gram_error=true"), tmp_path / "out", Listener())
    for r in read_results([outcome.file]):
        assert all((t.gram_error is None) == (r.key == "fedncm") for t in r.tasks)


def run_without_terminal_libraries(*arguments):
    code = (
        "import sys; sys.modules['typer'] = sys.modules['rich'] = sys.modules['flwr'] = None\n"
        "from fedran.bench.run.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )


def test_sweeps_run_without_typer_and_rich(config, tmp_path):
    config()
    done = run_without_terminal_libraries("c.toml", "--out", "here", "--set", "stream.seed=1")
    assert done.returncode == 0, done.stderr
    assert "2 runs done, 0 before, 0 failed" in done.stdout
    assert "fedran report here" in done.stdout
    assert len((tmp_path / "here" / "c.jsonl").read_text().splitlines()) == 2
    assert "[2/2] FedRAN" in done.stderr


def test_exit_codes_of_the_module(config, tmp_path, capsys):
    config()
    only = ("--set", "methods=fedncm", "--out", str(tmp_path / "out"))
    assert main(["c.toml", *only]) == 0
    assert "2 runs done" in capsys.readouterr().out
    assert main(["c.toml", *only]) == 0
    assert "0 runs done, 2 before" in capsys.readouterr().out
    config(CONFIG + BROKEN.replace("broken", "none"))
    assert main(["c.toml", "--out", str(tmp_path / "out")]) == 1
    assert "FAILED: none.safetensors: no such file" in capsys.readouterr().err
    for wrong in (["c.toml", "--set", "stream.bta=1"], ["nowhere.toml"]):
        assert main(wrong) == 2
        err = capsys.readouterr().err
        assert err.startswith("fedran: ")
        assert err.count("\n") == 1


def test_a_dry_run_lists_and_runs_nothing(config, tmp_path, capsys):
    config()
    assert main(["c.toml", "--dry-run", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[1].startswith("FedRAN, out features 32, rank 4 on digits (")
    assert not (tmp_path / "out").exists()


def test_a_stream_made_for_other_labels_is_refused(config, tmp_path):
    other = make_stream(np.repeat([0, 1, 2], 30), n_tasks=2, n_clients=2, beta=0.5, seed=1)
    save_stream(other, tmp_path / "s.json")
    text = 'dataset = "digits"\n[stream]\nfile = "s.json"\n[[method]]\nkey = "fedncm"\n'
    with pytest.raises(ValueError, match="another dataset"):
        execute(config(text), tmp_path / "out", Listener())


def test_asking_for_the_gram_error_later_measures_it(config, tmp_path):
    execute(config(CONFIG, "methods=fedran"), tmp_path / "out", Listener())
    later = config(CONFIG, "methods=fedran", "run.gram_error=true")
    outcome = execute(later, tmp_path / "out", Listener())
    assert all(t.gram_error is not None for r in read_results([outcome.file]) for t in r.tasks)


def test_an_accelerator_out_of_memory_is_a_failure_of_that_run_only(config, tmp_path, monkeypatch):
    """As torch reports it; side by side such a run is reported and the others go on."""

    def broken(job, **more):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(workers, "run", broken)
    assert len(execute(config(), tmp_path / "out", Listener()).failed) == 4


def test_a_stream_that_cannot_be_made_does_not_stop_the_others(config, tmp_path):
    text = CONFIG.replace("tasks = 2", "tasks = [2, 99]")
    outcome = execute(config(text), tmp_path / "out", Listener())
    assert outcome.done == 4
    assert len(outcome.failed) == 4


def test_an_interrupt_side_by_side_starts_no_more_runs(config, tmp_path, monkeypatch):
    """With threads instead of processes: what counts is which runs are still started."""
    started = []

    def work(job, checkpoint, side_by_side):
        started.append(job)
        time.sleep(0.01)
        return made_up().to_json()

    monkeypatch.setattr(workers, "_work", work)
    monkeypatch.setattr(workers, "ProcessPoolExecutor", lambda n, *_: ThreadPoolExecutor(n))
    text = CONFIG.replace("seed = [1, 2]", f"seed = {list(range(40))}")
    with pytest.raises(KeyboardInterrupt):
        execute(config(text), tmp_path / "out", Stopper("finished", 0), workers=2)
    assert len(started) < 20
