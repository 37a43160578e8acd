"""Streams and options of a sweep; one failure does not stop the other runs."""

import pytest

from fedran_bench.results.result import read_results
from fedran_bench.run import processes
from fedran_bench.run.sweep import execute, list_runs
from helpers.bench.listener import Listener
from helpers.bench.small_sweep import BROKEN, CONFIG
from helpers.bench.tiny_vit import tiny_vit


def test_a_run_that_fails_is_reported_and_the_others_go_on(config, tmp_path):
    pytest.importorskip("torch")
    text = CONFIG.replace("[[method]]", BROKEN + "[[method]]", 1)
    listener = Listener()
    outcome = execute(config(text), tmp_path / "out", listener)
    assert outcome.done == 4
    assert len(outcome.failed) == 2
    assert all("Finetune" in f and "training diverged" in f for f in outcome.failed)
    assert len(listener.of("failed")) == 2
    assert len(read_results([outcome.file])) == 4
    again = execute(config(text), tmp_path / "out", Listener())
    assert (again.done, again.skipped, len(again.failed)) == (0, 4, 2)


def test_a_stream_that_cannot_be_made_does_not_stop_the_others(config, tmp_path):
    text = CONFIG.replace("tasks = 2", "tasks = [2, 99]")
    outcome = execute(config(text), tmp_path / "out", Listener())
    assert outcome.done == 4
    assert len(outcome.failed) == 4


def test_a_folder_that_cannot_be_written_is_found_before_the_first_run(
    config, tmp_path, monkeypatch
):
    monkeypatch.setattr("os.access", lambda *_: False)
    listener = Listener()
    with pytest.raises(PermissionError, match="out: this folder cannot be written"):
        execute(config(), tmp_path / "out", listener)
    assert listener.of("start") == []


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory")])
def test_running_out_of_memory_fails_only_that_run(error, config, tmp_path, monkeypatch):
    real = processes.run

    def greedy(prepared, **more):
        if prepared.key == "fedran":
            raise error
        return real(prepared, **more)

    monkeypatch.setattr(processes, "run", greedy)
    outcome = execute(config(), tmp_path / "out", Listener())
    assert outcome.done == 2
    assert len(outcome.failed) == 2
    assert all(f": {type(error).__name__}" in f for f in outcome.failed)


def test_a_list_of_runs_names_what_is_already_done_and_writes_nothing(config, tmp_path):
    file = execute(config(CONFIG, "methods=fedncm"), tmp_path, Listener()).file
    cut = file.read_text() + '{"half": '
    file.write_text(cut)
    lines, possible = list_runs(config(), tmp_path)
    assert possible
    assert file.read_text() == cut  # perhaps another process writes this line just now
    done = [line for line in lines if line.endswith(": already done")]
    assert done == [line for line in lines if line.startswith("FedNCM")]
    assert 0 < len(done) < len(lines)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("dataset=none.npz", "none.npz"),
        ("stream.partitioner=natural", "needs a group for every row"),
        ('stream={partitioner = "iid"}', "partitioner 'iid' needs clients, at least 1, got None"),
        ("stream={clients = 2}", "partitioner 'dirichlet' needs beta, positive and finite"),
    ],
)
def test_a_list_of_runs_finds_data_and_streams_that_are_not_possible(
    override, reason, config, tmp_path
):
    with pytest.raises((ValueError, OSError), match=reason):
        list_runs(config(CONFIG, override), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_list_of_runs_marks_those_that_are_not_possible(config, tmp_path):
    lines, possible = list_runs(config(CONFIG, "stream.tasks=[2,99]"), tmp_path)
    assert not possible
    assert [("cannot run: " in x) == ("99 tasks" in x) for x in lines] == [True] * 8


@pytest.mark.parametrize(
    ("key", "setting", "words"),
    [
        ("fed-dualprompt", "task_blocks = 3", "task_blocks"),
        ("fed-codaprompt", "blocks = 3", "blocks must be at most 2"),
        ("fed-dualprompt", 'execution = "recorded"', "needs a CUDA device, got cpu"),
        ("finetune", 'execution = "recorded"', "needs a CUDA device, got cpu"),
    ],
)
def test_a_list_of_runs_finds_settings_that_do_not_suit_network_or_device(
    key, setting, words, config, tmp_path
):
    pytest.importorskip("torch")
    weights = "" if key == "finetune" else f'weights = "{tiny_vit()}"'
    stream = "[stream]\ntasks = 2\nclients = 2\nbeta = 0.5\n"
    text = f'dataset = "digits"\n[[method]]\nkey = "{key}"\n{weights}\n{setting}\n{stream}'
    with pytest.raises(ValueError, match=words):
        list_runs(config(text), tmp_path)
