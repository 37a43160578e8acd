"""Runs that do not fit into memory are refused, and fewer processes run where memory is short."""

import pytest

from fedran.bench.results.result import read_results
from fedran.bench.run import memory
from fedran.bench.run.config import parse_config
from fedran.bench.run.job import jobs
from fedran.bench.run.sweep import execute
from helpers.listener import Listener
from helpers.small_sweep import CONFIG


def test_little_memory_means_fewer_processes(config, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 600 * 2**20)
    listener = Listener()
    outcome = execute(config(CONFIG, "methods=fedncm"), tmp_path / "out", listener, workers=3)
    assert listener.of("note") == [
        ("1 of 3 processes: a run may take 0.4 GiB of memory, 0.6 GiB available",)
    ]
    assert {r.side_by_side for r in read_results([outcome.file])} == {1}


@pytest.mark.parametrize(("free", "expected"), [(None, 4), (100 * 2**30, 4), (2**30, 2), (1, 1)])
def test_processes_fit_into_memory(free, expected, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: free)
    listener = Listener()
    assert memory.workers_that_fit(4, memory.Needs(460 * 2**20), None, listener.note) == expected
    assert len(listener.of("note")) == (expected < 4)


def needs_of(key, **params):
    method = {"key": key, **params}
    stream = {"tasks": 2, "clients": 2, "beta": 1.0}
    experiment = parse_config({"dataset": "digits", "stream": stream, "method": [method]})
    return memory.estimate_needs(jobs(experiment)[0].prepare())


def test_larger_runs_are_expected_to_take_more_memory():
    host = lambda *given, **params: needs_of(*given, **params).host  # noqa: E731
    assert host("fedran", out_features=4096) > host("fedran", out_features=1024)
    assert host("exact", out_features=4096) > host("fedran", out_features=4096)
    assert host("fedncm") > memory.BASE_MEMORY
    assert host("gh-ofl-fishermix") - host("gh-ofl-lda") == 12 * 10 * 4000 * 129
    assert host("fedpft") > host("fedncm") + 3 * 4 * 1000 * 64


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
        "the run would not fit: about 1.7 GiB of memory needed, 0.4 GiB available; use fewer "
        "clients, a smaller batch or network, or another machine"
    ] * 2
    assert sum(p.steps == 0 for p in listener.planned) == 2
    assert len(listener.of("start")) == 4


def test_an_accelerator_has_a_memory_of_its_own(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**40)
    monkeypatch.setattr(memory, "free_accelerator_memory", lambda device: 2**30)
    memory.require_fit(memory.Needs(2**30), None)
    with pytest.raises(ValueError, match=r"2\.0 GiB of memory on cuda needed, 1\.0 GiB available"):
        memory.require_fit(memory.Needs(2**30, 2**31), "cuda")
    listener = Listener()
    assert memory.workers_that_fit(4, memory.Needs(2**20, 2**29), "cuda", listener.note) == 1
