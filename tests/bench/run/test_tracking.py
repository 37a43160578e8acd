"""Trackers: what they are told, what ours write, and what happens when one fails."""

import csv
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest

from fedran.bench.results.result import read_results
from fedran.bench.run.sweep import execute
from fedran.bench.run.tracking import Tracker, make_tracker
from fedran.core.errors import MissingExtra
from helpers.listener import Listener
from helpers.small_sweep import BROKEN, CONFIG

PAGE = (Path(__file__).parents[3] / "docs/how-to/benchmark.md").read_text()
EXAMPLES = re.findall(r"^```py\n(.*?)^```", PAGE, re.M | re.S)
ONE_SEED = "stream.seed=1"


@pytest.fixture(autouse=True)
def own_modules(tmp_path, monkeypatch):
    """Modules of the working folder are found, and forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    sys.modules.pop("my_trackers", None)


def write(text, folder):
    (folder / "my_trackers.py").write_text(text)


RECORDER = """
from fedran.bench.run.tracking import Tracker
heard = []
class Recorder(Tracker):
    def start(self, run, settings): heard.append(("start", run, settings))
    def task_done(self, run, done): heard.append(("task", run, done))
    def finished(self, run, result): heard.append(("finished", run, result.A_T))
    def failed(self, run, reason): heard.append(("failed", run, reason))
    def close(self): heard.append(("close",))
class Faulty(Recorder):
    def task_done(self, run, done): raise OSError("disk full")
class Other: ...
"""


def test_a_tracker_hears_of_every_run_and_task_in_another_process(config, tmp_path):
    write(RECORDER, tmp_path)
    experiment = config(CONFIG, ONE_SEED)
    out, name = tmp_path / "out", "my_trackers:Recorder"
    outcome = execute(experiment, out, Listener(), workers=1, trackers=[name])
    heard = sys.modules["my_trackers"].heard
    assert heard[-1] == ("close",)
    results = {r.label: r for r in read_results([outcome.file])}
    for label, result in results.items():
        own = [h for h in heard if h[0] != "close" and h[1].startswith(label)]
        (_, _, settings), *tasks, (_, _, accuracy) = own
        assert [h[0] for h in own] == ["start", "task", "task", "finished"]
        assert (settings["method"], settings["dataset"]) == (result.key, "digits")
        assert settings["stream"]["beta"] == 0.5
        assert accuracy == result.A_T
        assert [t[2].accuracy for t in tasks] == pytest.approx(result.A)
        assert [t[2].upload for t in tasks] == [max(t.bytes_up) for t in result.tasks]
        assert [(t[2].task, t[2].tasks) for t in tasks] == [(1, 2), (2, 2)]


def test_a_tracker_that_raises_is_switched_off_and_the_runs_go_on(config, tmp_path):
    write(RECORDER, tmp_path)
    listener, names = Listener(), ["my_trackers:Faulty", "csv"]
    outcome = execute(config(CONFIG, ONE_SEED), tmp_path / "out", listener, trackers=names)
    assert (outcome.done, outcome.failed) == (2, ())
    assert listener.of("note") == [("Faulty is switched off: OSError: disk full",)]
    assert [h[0] for h in sys.modules["my_trackers"].heard] == ["start"]
    assert len((tmp_path / "out" / "tasks.csv").read_text().splitlines()) == 1 + 4


def test_the_csv_file_grows_by_one_line_per_task(config, tmp_path):
    out = tmp_path / "out"
    execute(config(CONFIG, ONE_SEED, "methods=fedncm"), out, Listener(), trackers=["csv"])
    outcome = execute(config(CONFIG, ONE_SEED), out, Listener(), trackers=["csv"])
    rows = list(csv.DictReader((out / "tasks.csv").read_text().splitlines()))
    assert [(r["method"], r["task"], r["tasks"]) for r in rows] == [
        *(("fedncm", t, "2") for t in "12"),
        *(("fedran", t, "2") for t in "12"),
    ]
    for result in read_results([outcome.file]):
        own = [float(r["accuracy"]) for r in rows if r["method"] == result.key]
        assert own == pytest.approx(result.A, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("cvs", ValueError, "no tracker 'cvs' (did you mean 'csv'?); expected csv, tensorboard or"),
        ("nowhere:Thing", ValueError, "tracker 'nowhere:Thing': no module 'nowhere'"),
        ("my_trackers:Other", ValueError, "Other must be a subclass of Tracker"),
        ("tensorboard", MissingExtra, "install fedran's extra 'tensorboard'"),
    ],
)
def test_an_unknown_tracker_is_refused_before_the_first_run(name, error, words, config, tmp_path):
    write(RECORDER, tmp_path)
    sys.modules["tensorboardX"] = None
    try:
        with pytest.raises(error, match=re.escape(words)):
            execute(config(), tmp_path / "out", Listener(), trackers=[name])
    finally:
        del sys.modules["tensorboardX"]
    assert not list(tmp_path.rglob("*.jsonl"))


def test_tensorboard_gets_three_figures_per_task(config, tmp_path, monkeypatch):
    made = {}

    def writer(folder):
        made[folder] = MagicMock()
        return made[folder]

    fake = ModuleType("tensorboardX")
    fake.SummaryWriter = writer
    monkeypatch.setitem(sys.modules, "tensorboardX", fake)
    outcome = execute(
        config(CONFIG, ONE_SEED, "methods=fedncm"), tmp_path, Listener(), trackers=["tensorboard"]
    )
    (result,) = read_results([outcome.file])
    ((folder, calls),) = made.items()
    assert Path(folder).parent == tmp_path / "tensorboard"
    scalars = [c.args for c in calls.add_scalar.call_args_list]
    assert [s[1] for s in scalars if s[0] == "accuracy"] == pytest.approx(result.A)
    assert [(s[0], s[2]) for s in scalars] == [
        *((n, t) for t in (1, 2) for n in ("accuracy", "upload", "seconds")),
        ("A_avg", 2),
    ]
    calls.close.assert_called_once()


def test_tensorboard_files_are_written_by_the_library(tmp_path):
    pytest.importorskip("tensorboardX")
    tracker = make_tracker("tensorboard", tmp_path)
    tracker.start("a run (beta 0.1)", {"method": "afl"})
    tracker.close()
    assert list((tmp_path / "tensorboard" / "a-run-beta-0.1").iterdir())


def test_a_tracker_without_functions_hears_everything_in_silence(tmp_path):
    tracker = Tracker(tmp_path)
    for event, given in (("start", ("r", {})), ("task_done", ("r", None)), ("close", ())):
        assert getattr(tracker, event)(*given) is None


@pytest.mark.parametrize("name", ["Wandb", "Mlflow"])
def test_the_documented_trackers_fit_the_interface(name, config, tmp_path, monkeypatch):
    (text,) = [block for block in EXAMPLES if f"class {name}" in block]
    client = MagicMock()
    client.create_run.return_value = SimpleNamespace(info=SimpleNamespace(run_id="7"))
    library = ModuleType("wandb")
    library.init = client.init
    tracking = ModuleType("mlflow.tracking")
    tracking.MlflowClient = lambda: client
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    monkeypatch.setitem(sys.modules, "mlflow.tracking", tracking)
    write(text, tmp_path)
    listener = Listener()
    experiment = config(CONFIG + BROKEN, ONE_SEED)
    outcome = execute(experiment, tmp_path / "out", listener, trackers=[f"my_trackers:{name}"])
    assert (outcome.done, len(outcome.failed)) == (2, 1)
    assert listener.of("note") == []
    logged = client.init.return_value.log if name == "Wandb" else client.log_metric
    assert logged.call_count == (4 if name == "Wandb" else 2 * 4 + 2)
    ended = client.init.return_value.finish if name == "Wandb" else client.set_terminated
    assert ended.call_count == 3
