"""``python -m fedran.bench.run``: lines, exit codes, dry runs."""

import subprocess
import sys

import pytest

from fedran.bench.run.__main__ import main
from helpers.small_sweep import BROKEN, CONFIG
from helpers.tiny_vit import tiny_vit

STREAM = "[stream]\ntasks = 2\nclients = 2\nbeta = 0.5\n"


def test_sweeps_run_where_only_numerical_libraries_are_installed(
    config, tmp_path, patched_processes
):
    absent = ("typer", "rich", "flwr", "psutil", "jinja2", "matplotlib")
    patched_processes(f"import sys; sys.modules.update(dict.fromkeys({absent}))")
    config()
    command = ["-m", "fedran.bench.run", "c.toml", "--out", "here", "--set", "stream.seed=1"]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "2 runs done, 0 skipped, 0 failed" in done.stdout
    assert "fedran report here" in done.stdout
    assert len((tmp_path / "here" / "c.jsonl").read_text().splitlines()) == 2
    assert "[2/2] run 2 (FedRAN): " in done.stderr


def test_the_module_exits_with_0_1_or_2(config, tmp_path, capsys):
    config()
    only = ("--set", "methods=fedncm", "--out", str(tmp_path / "out"))
    assert main(["c.toml", *only]) == 0
    assert "2 runs done" in capsys.readouterr().out
    assert main(["c.toml", *only]) == 0
    assert "0 runs done, 2 skipped" in capsys.readouterr().out
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


def test_a_dry_run_names_what_is_already_done(config, tmp_path, capsys):
    config()
    assert main(["c.toml", "--set", "methods=fedncm", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    file = tmp_path / "c.jsonl"
    cut = file.read_text() + '{"half": '
    file.write_text(cut)
    assert main(["c.toml", "--dry-run", "--out", str(tmp_path)]) == 0
    assert file.read_text() == cut  # perhaps another process writes this line just now
    lines = capsys.readouterr().out.splitlines()
    done = [line for line in lines if line.endswith(": already done")]
    assert done == [line for line in lines if line.startswith("FedNCM")]
    assert 0 < len(done) < len(lines)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("dataset=digit", "no dataset 'digit' (did you mean 'digits'?)"),
        ("dataset=none.npz", "none.npz"),
        ("stream.tasks=11", "stream.tasks must lie in 1 .. 10"),
        ("stream.partitioner=natural", "needs a group for every row"),
        ('stream={file="none.json"}', "none.json: no such file"),
    ],
)
def test_a_dry_run_finds_data_and_streams_that_are_not_possible(override, reason, config, capsys):
    config()
    assert main(["c.toml", "--dry-run", "--set", override]) == 2
    captured = capsys.readouterr()
    assert reason in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_dry_run_marks_the_runs_that_are_not_possible(config, capsys):
    config()
    assert main(["c.toml", "--dry-run", "--set", "stream.tasks=[2,99]"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert [("cannot run: stream.tasks" in x) == ("99 tasks" in x) for x in lines] == [True] * 8


@pytest.mark.parametrize(
    ("key", "override", "words"),
    [
        ("fed-dualprompt", "method.task_blocks=3", "at most 2, the blocks of the network, got 2"),
        ("fed-codaprompt", "method.blocks=3", "blocks must be at most 2, the blocks of the"),
        ("fed-dualprompt", "method.execution=recorded", "'recorded' needs a CUDA device, got cpu"),
        ("finetune", "method.execution=recorded", "'recorded' needs a CUDA device, got cpu"),
    ],
)
def test_a_dry_run_finds_settings_that_do_not_suit_network_or_device(
    key, override, words, config, capsys
):
    pytest.importorskip("torch")
    weights = "" if key == "finetune" else f'weights = "{tiny_vit()}"'
    config(f'dataset = "digits"\n[[method]]\nkey = "{key}"\n{weights}\n{STREAM}')
    assert main(["c.toml", "--dry-run", "--set", override]) == 2
    assert words in capsys.readouterr().err


def test_methods_and_datasets_may_be_given_instead_of_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = ["--method", "fedncm", "--dataset", "digits", "--set", "stream.tasks=2"]
    assert main([*given, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("FedNCM on digits (2 tasks, ")
    assert main(["--method", "fedncm"]) == 2
    assert "--dataset must be given" in capsys.readouterr().err
