"""Runs in processes: same results, killed processes, threads, interrupts."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedran.core.summarize import summarize
from fedran_bench.results.result import read_results
from fedran_bench.run import processes
from fedran_bench.run.processes import THREAD_VARIABLES, one_line, threads_per_run
from fedran_bench.run.runner import usable_cores
from fedran_bench.run.sweep import execute
from helpers.bench.listener import Listener, Stopper
from helpers.bench.small_sweep import BROKEN, CONFIG, measured, steps


def test_runs_side_by_side_give_the_same_results(config, tmp_path):
    pytest.importorskip("torch")
    text = CONFIG.replace("seed = [1, 2]", "seed = 1") + BROKEN
    alone = execute(config(text), tmp_path / "alone", Listener())
    listener = Listener()
    both = execute(config(text), tmp_path / "both", listener, workers=2)
    assert measured(both.file) == measured(alone.file)
    assert {r.side_by_side for r in read_results([both.file])} == {2}
    assert {r.side_by_side for r in read_results([alone.file])} == {1}
    assert both.done == 2
    assert sorted(both.failed) == sorted(alone.failed)
    assert len(both.failed) == 1
    assert len(listener.of("start")) == 3
    expected = {job: steps(job) for job in listener.planned if "Finetune" not in str(job)}
    assert Counter(job for job, _ in listener.of("step")) == expected
    assert len(listener.of("finished")) == 2


def failed(call):
    with pytest.raises(Exception) as error:
        call()
    return one_line(error.value)


def test_an_error_in_a_method_of_the_user_has_its_file_and_line():
    code = compile("def mine():\n    raise ValueError('oops')\nmine()", "/home/me/mine.py", "exec")
    assert failed(lambda: exec(code)) == "ValueError: oops (mine.py, line 2)"
    code = compile("import numpy\nnumpy.eye('x')", "/home/me/mine.py", "exec")
    assert failed(lambda: exec(code)).endswith("(mine.py, line 2)")
    assert (
        failed(lambda: summarize(np.eye(2), [0]))
        == "y must hold one label per row: 2 rows, 1 labels"
    )
    text = "import json\njson.loads('{')"
    theirs = failed(lambda: exec(compile(text, "/my.py", "exec")))
    assert theirs.endswith("(my.py, line 2)")
    ours = failed(lambda: exec(compile(text, processes.__file__, "exec")))
    assert ours.startswith("Expecting property name")
    assert "decoder.py" not in ours


WITH_AFL = CONFIG + '[[method]]\nkey = "afl"\n'
KILL = """
    import os, signal
    from fedran_bench.methods.analytic.afl import AFL

    AFL.client = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_is_killed_fails_and_the_others_go_on(config, tmp_path, patched_processes):
    """As the kernel does when memory runs out."""
    patched_processes(KILL)
    listener = Listener()
    experiment = config(WITH_AFL, "stream.seed=1")
    outcome = execute(experiment, tmp_path / "out", listener, workers=2)
    assert outcome.done == 2
    assert {r.key for r in read_results([outcome.file])} == {"fedncm", "fedran"}
    (failed,) = outcome.failed
    assert "AFL" in failed
    assert "was killed (SIGKILL)" in failed
    assert len(listener.of("failed")) == 1


def test_linear_algebra_in_a_process_uses_its_share_of_the_cores(
    config, tmp_path, patched_processes, monkeypatch
):
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    patched_processes("""
        import json, os, pathlib, threadpoolctl
        from fedran_bench.methods.analytic.class_means import FedNCM

        client = FedNCM.client

        def noting(self, *given):
            pools = [p["num_threads"] for p in threadpoolctl.threadpool_info()]
            found = {"pools": pools, "environment": os.environ["OMP_NUM_THREADS"]}
            pathlib.Path(f"threads-{os.getpid()}").write_text(json.dumps(found))
            return client(self, *given)

        FedNCM.client = noting
    """)
    experiment, before = config(CONFIG, "methods=fedncm"), dict(os.environ)
    assert execute(experiment, tmp_path / "out", Listener(), workers=2).done == 2
    share = max(1, usable_cores() // 2)
    notes = [json.loads(p.read_text()) for p in tmp_path.glob("threads-*")]
    assert len(notes) == 2
    for note in notes:
        assert set(note["pools"]) == {share}
        assert note["environment"] == str(share)
    assert dict(os.environ) == before


def test_the_environment_can_lower_the_number_of_threads(monkeypatch):
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert usable_cores() == 1
    monkeypatch.setattr(processes, "usable_cores", lambda: 8)
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert [threads_per_run(n) for n in (0, 1, 2, 3, 16)] == [8, 8, 4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert [threads_per_run(n) for n in (1, 2, 4)] == [3, 3, 2]


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("jobs", "whole_group"), [(1, True), (2, False)])
def test_an_interrupt_ends_a_long_computation_within_two_seconds(
    jobs, whole_group, config, tmp_path, patched_processes
):
    """A LAPACK call that holds the interpreter for minutes; the terminal signals the group."""
    patched_processes("""
        import os, pathlib, numpy as np, scipy.linalg
        from fedran_bench.methods.analytic.afl import AFL

        def client(self, *given):
            pathlib.Path(f"pid-{os.getpid()}").touch()
            scipy.linalg.eigh(np.random.default_rng(0).random((3000, 3000)), driver="ev")

        AFL.client = client
    """)
    config(WITH_AFL)
    main = "from fedran.cli.main import main; main()"
    command = ["-c", main, "bench", "run", "c.toml", "--set", "methods=afl", "--jobs", str(jobs)]
    process = subprocess.Popen(
        [sys.executable, *command], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("pid-*"))) < jobs and time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    time.sleep(0.5)
    start = time.monotonic()
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    busy = max(1.0, os.getloadavg()[0] / usable_cores())  # other programs slow this one down
    assert time.monotonic() - start < 2 * busy
    assert process.returncode == 130
    assert "fedran: stopped" in err
    for path in tmp_path.glob("pid-*"):
        assert not Path(f"/proc/{path.name[4:]}").exists()


def test_an_interrupt_starts_no_more_runs(config, tmp_path):
    text = CONFIG.replace("seed = [1, 2]", f"seed = {list(range(10))}")
    listener = Stopper("finished", 0)
    with pytest.raises(KeyboardInterrupt):
        execute(config(text, "methods=fedncm"), tmp_path / "out", listener, workers=2)
    assert len(listener.of("start")) < 10
    assert multiprocessing.active_children() == []
