"""``fedran bench run``: lines, exit codes, one-line errors."""

from pathlib import Path

import numpy as np
import pytest

from fedran_bench.report.tables import command
from fedran_bench.results.result import read_results

ROOT = Path(__file__).parents[3]
DIGITS = str(ROOT / "configs" / "digits.toml")
FAST = ("--set", "methods=fedncm,afl", "--set", "stream.seed=7")


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def test_a_run_prints_a_line_per_task_and_run_and_says_where_the_results_are(cli, tmp_path):
    code, out, err = cli("bench", "run", DIGITS, "--out", "here", *FAST)
    assert (code, err) == (0, "")
    for beta in (0.1, 1.0):
        for label in ("FedNCM", "AFL"):
            name = f": {label} on digits (5 tasks, seed 7, 5 clients, beta {beta})"
            (first,) = (x for x in out.splitlines() if x.endswith(name))
            short = f"{first.removesuffix(name)} ({label})"
            lines = [x for x in out.splitlines() if short in x]
            assert [x[: len(short) + 13] for x in lines[:5]] == [
                f"{short}, task {t} of 5" for t in range(1, 6)
            ]
            assert "A_avg " in lines[5]
            assert "0.00 MiB" not in lines[5]
            assert len(lines) == 6
            assert max(map(len, lines)) < 100
    assert "Digits, every method" in out
    assert "4 runs done, 0 skipped, 0 failed. Results: here/digits.jsonl" in out
    assert "fedran bench report here" in out
    results = read_results([tmp_path / "here" / "digits.jsonl"])
    assert {r.key for r in results} == {"fedncm", "afl"}
    assert {r.config for r in results} == {"digits.toml"}
    assert all(r.arguments == ["digits.toml", *FAST] for r in results)
    assert "Digits, every method (methods=fedncm,afl; stream.seed=7)" in out
    code, out, _ = cli("bench", "run", DIGITS, "--out", "here", *FAST)
    assert code == 0
    assert "0 runs to do, 4 already done" in out
    assert "0 runs done, 4 skipped, 0 failed" in out
    code, out, _ = cli("bench", "report", "here")
    assert code == 0


def test_a_dry_run_lists_every_run_and_leaves_nothing(cli, tmp_path):
    code, out, err = cli("bench", "run", DIGITS, "--dry-run")
    assert (code, err) == (0, "")
    methods = Path(DIGITS).read_text().count("[[method]]")
    assert len(out.splitlines()) == 2 * 2 * methods  # betas x seeds x methods
    assert out.splitlines()[0].startswith("FedRAN, out features 1024, rank 64 on digits (")
    assert list(tmp_path.iterdir()) == []


def test_a_failing_run_is_reported_with_exit_code_1(cli, tmp_path):
    (tmp_path / "c.toml").write_text(
        'dataset = "digits"\n[stream]\ntasks = 2\nclients = 2\nbeta = 1\n'
        '[[method]]\nkey = "finetune"\nn_rounds = 1\nlr = 1e30\n'
        '[[method]]\nkey = "fedncm"\n'
    )
    code, out, err = cli("bench", "run", str(tmp_path / "c.toml"))
    assert (code, err) == (1, "")
    assert "Finetune (head)" in out
    assert "training diverged" in out
    assert "1 run done, 0 skipped, 1 failed. Results: " in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([DIGITS, "--set", "dataset=digit"], "no dataset 'digit' (did you mean 'digits'?)"),
        ([DIGITS, "--set", "nonsense"], "--set expects key=value, got 'nonsense'"),
        ([DIGITS, "--set", "stream.tasks=11"], "tasks must lie in 1 .. 10, the number of classes"),
        ([DIGITS, "--set", "stream.partitioner=natural"], "needs a group for every row"),
        (["nowhere.toml"], "nowhere.toml: no such file; expected a configuration"),
        (["."], "this is a folder"),
        ([DIGITS, "--jobs", "0"], "--jobs"),
        ([DIGITS, "--dryrun"], "--dry-run"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(cli, arguments, words, tmp_path):
    code, _, err = cli("bench", "run", *arguments)
    assert code == 2
    assert words in err
    assert err.startswith("fedran: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.rglob("*.jsonl"))


def test_escape_sequences_in_names_never_reach_the_terminal(cli, tmp_path):
    (tmp_path / "c.toml").write_text(
        'name = "\\u001b[31mx"\ndataset = "digits"\n'
        "[stream]\ntasks = 2\nclients = 2\nbeta = 1\n"
        '[[method]]\nkey = "fedncm"\nlabel = "\\u001b[31my"\n'
    )
    code, out, err = cli("bench", "run", "c.toml")
    assert code == 2
    assert "must be text in one line" in err
    assert "\x1b" not in out + err


def test_an_interrupt_is_130_and_the_next_call_goes_on(cli, monkeypatch, tmp_path):
    def stop(self, what, result):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedran_bench.cli.run.Reporter.finished", stop)
        assert cli("bench", "run", DIGITS, *FAST)[0] == 130
    code, out, _ = cli("bench", "run", DIGITS, *FAST)
    assert code == 0
    assert "3 runs done, 1 skipped" in out


def test_a_device_that_is_not_there_is_refused_before_the_first_run(cli):
    pytest.importorskip("torch")
    code, out, err = cli("bench", "run", DIGITS, *FAST, "--device", "nonsense")
    assert code == 2
    assert "device: expected one that PyTorch has here, got 'nonsense'" in " ".join(err.split())
    assert "runs" not in out


def test_a_device_without_pytorch_is_refused_before_the_first_run(cli, monkeypatch):
    monkeypatch.setattr("fedran_bench.run.sweep.find_spec", lambda _: None)
    code, out, err = cli("bench", "run", DIGITS, *FAST, "--device", "cuda")
    assert (code, "run to do" in out, err.count("\n")) == (2, False, 1)
    assert "the device 'cuda' needs PyTorch: install fedran's extra 'torch'" in err


def test_methods_and_datasets_run_without_a_file(cli, tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 15)
    (tmp_path / "deep").mkdir()
    np.savez(tmp_path / "deep" / "mine.npz", X=y[:, None] + rng.random((60, 3)), y=y)
    given = ["--method", "fedncm", "--method", "afl", "--dataset", "deep/mine.npz"]
    changes = ["--set", "stream.clients=2", "--set", "method.gamma=2"]
    code, out, err = cli("bench", "run", *given, *changes)
    assert (code, err) == (0, "")
    assert out.startswith("fedncm, afl on mine\n")
    assert "AFL, gamma 2 on mine (" in out
    results = read_results([tmp_path / "runs" / "fedncm-afl-on-mine.jsonl"])
    assert {(r.key, r.dataset, r.config) for r in results} == {
        ("fedncm", "mine", ""),
        ("afl", "mine", ""),
    }
    assert all(len(r.tasks[0].bytes_up) == 2 for r in results)
    assert {len(r.tasks) for r in results} == {4}, "one task per class where there are few"
    assert command(results[0]) == " ".join(["fedran bench run", *given, *changes])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "without CONFIG.toml, --method and --dataset must be given"),
        (["--method", "afl"], "without CONFIG.toml, --dataset must be given"),
        (["--dataset", "digits"], "without CONFIG.toml, --method must be given"),
        ([DIGITS, "--method", "afl"], "use --set methods=... and --set dataset=... instead"),
        (["--method", "aful", "--dataset", "digits"], "no method 'aful' (did you mean 'afl'?)"),
        (["--method", "afl", "--dataset", "digit"], "no dataset 'digit' (did you mean 'digits'?)"),
    ],
)
def test_a_command_without_a_file_says_what_it_lacks(cli, arguments, words):
    code, _, err = cli("bench", "run", *arguments)
    assert code == 2
    assert words in err


def test_rows_of_a_table_without_a_label_are_counted_once(cli, tmp_path):
    lines = [f"{i % 3},{i % 7},{'' if i % 10 == 0 else 'ab'[i % 3 % 2]}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["x,z,label", *lines]))
    words = "t.csv: 6 of 60 rows have no label and are left out"
    given = ("bench", "run", "--method", "fedncm", "--method", "afl", "--dataset", "t.csv")
    for options in (("--dry-run",), ()):
        code, out, _ = cli(*given, *options)
        assert code == 0
        assert out.count(words) == 1


def test_the_column_of_labels_may_have_another_name(cli, tmp_path):
    lines = [f"{i % 3},{i % 7},{'ab'[i % 3 % 2]}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["x,z,my kind", *lines]))
    given = ("bench", "run", "--method", "fedncm", "--dataset", "t.csv")
    code, out, err = cli(*given)
    words = "t.csv: expected one column label, got the columns x, z, my kind; name the column of "
    assert code == 2
    assert f'{words}labels with --label "my kind"' in " ".join(f"{out} {err}".split())
    assert cli(*given, "--label", "my kind")[0] == 0
    (result,) = read_results([tmp_path / "runs" / "fedncm-on-t.jsonl"])
    assert result.arguments == [*given[2:], "--set", 'label_column="my kind"']
    code, _, err = cli(
        "bench", "run", "--method", "fedncm", "--dataset", "digits", "--label", "kind"
    )
    assert (code, "label_column names a column of a CSV or Parquet file" in err) == (2, True)
