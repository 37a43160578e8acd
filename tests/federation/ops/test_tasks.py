"""Running a task while Flower loses runs or does not answer. Flower is simulated."""

import json

import pytest

pytest.importorskip("cryptography")

from fedran.cli.main import run as cli
from fedran.core.errors import Refused
from fedran.federation.flower import control, programs
from fedran.federation.ops import tasks
from fedran.federation.ops.tasks import ENOUGH, TaskError, run_task
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.limits import MAX_RUNS
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.logs import log_file
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.round.quorum import CLOSED
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store.database import Database
from helpers.federation.recorded_federation import add_row


class Flower:
    """Runs end as a test says; an exception is raised instead of an answer."""

    def __init__(self, place, *answers):
        self.place, self.answers, self.started = place, list(answers), []

    def start_run(self, place, task, deadline=0.0):
        self.started.append(task)
        self.deadline = deadline
        return str(100 + len(self.started))

    def list_runs(self, place, run_id):
        assert run_id == str(100 + len(self.started))
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return [control.FlowerRun("1", found, 3000, 2000)] if isinstance(found, str) else found


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "server.toml").write_text('federation = "trial"\nin_features = 6\n')
    Roster({"site-1": SiteKey.generate().public}).save(tmp_path / "roster.toml")
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(tasks, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(programs, "is_listening", lambda _: True)
    with locked(tmp_path / "log"):
        yield ServerPaths(tmp_path)


@pytest.fixture
def answering(place, monkeypatch):
    def make(*answers):
        found = Flower(place, *answers)
        for name in ("start_run", "list_runs"):
            monkeypatch.setattr(control, name, getattr(found, name))
        return found

    return make


def book(place):
    return Database(place.state)


def ended(place, state, task="may"):
    book(place).set_task(task)
    book(place).set_task(task, state)


def test_a_task_without_a_running_server_is_an_error_with_advice(tmp_path):
    (tmp_path / "server.toml").write_text('federation = "trial"\nin_features = 6\n')
    with pytest.raises(TaskError, match="not running; start it with `fedran federation up`"):
        run_task(ServerPaths(tmp_path), "may", say=print)


@pytest.mark.parametrize("task", ["", "a  b", "../x", 'x" other="1', "x" * 65, "a\nb"])
def test_an_invalid_task_id_never_reaches_flower(task, place, answering):
    link = answering()
    with pytest.raises(Refused, match="task: expected"):
        run_task(place, task, say=print)
    assert link.started == []


def test_a_task_names_the_sites_that_are_not_in_the_classifier(place, answering):
    answering("finished:completed")
    ended(place, "complete")
    book(place).set_fact("judged", json.dumps({"set_aside": [{"client": "site-1"}]}))
    said = []
    run_task(place, "may", say=said.append)
    assert said[-1] == "not in the classifier: site-1; `fedran federation status` says why"


@pytest.mark.parametrize("state", ["complete", "quorum", "short"])
def test_the_state_of_a_task_is_what_the_server_recorded(state, place, answering):
    link = answering("pending", "running", "finished:completed")
    ended(place, "short")
    ended(place, "complete", "june")
    ended(place, state)
    for task in ("may", "june"):
        add_row(book(place), "site-1", task, bytes=2_500_000)
    said = []
    done = run_task(place, "may", say=said.append)
    assert done == state
    assert (done in ENOUGH) == (state != "short")
    assert said[-1] == (f"task may: {state}; uploads 2.38 MiB; transport 2.9 KiB in, 2.0 KiB out")
    assert link.started == ["may"]
    noted = {run.run: run for run in book(place).runs()}["1"]
    assert (noted.task, noted.received, noted.sent) == ("may", 3000, 2000)
    assert noted.status == "finished:completed"


def test_a_task_without_a_recorded_state_is_not_successful(place, answering):
    answering("finished:completed")
    done = run_task(place, "may", say=print)
    assert done == "unknown"
    assert done not in ENOUGH


def test_lines_of_the_server_log_are_passed_on_during_the_run(place, answering, monkeypatch):
    path = log_file(place.folder)
    path.write_text("before\n")
    answering("running", "running", "finished:completed")
    lines = iter(["one\ntw", "o\n", "three\n"])

    def sleep(_):
        with path.open("a") as file:
            file.write(next(lines))

    monkeypatch.setattr(tasks.time, "sleep", sleep)
    said = []
    run_task(place, "may", say=said.append)
    assert said[1:-1] == ["one", "two", "three"]
    assert said[0] == "task may: Flower starts a run, which takes some seconds"


def test_a_run_that_failed_is_started_again(place, answering):
    link = answering("finished:failed", "running", "finished:stopped", "finished:completed")
    ended(place, "complete")
    said = []
    assert run_task(place, "may", say=said.append) == "complete"
    assert len(link.started) == 3
    assert sum("it is started again" in line for line in said) == 2


def test_a_task_whose_runs_all_fail_is_an_error(place, answering):
    link = answering(*["finished:failed"] * 50)
    said = []
    with pytest.raises(
        TaskError, match=f"{MAX_RUNS} runs did not complete; the last is finished:failed"
    ):
        run_task(place, "may", say=said.append)
    assert len(link.started) == MAX_RUNS
    assert sum("it is started again" in line for line in said) == MAX_RUNS - 1


AWAY = [control.FlowerError("no answer of Flower"), OSError(111, "refused"), TimeoutError()]


@pytest.mark.parametrize("reason", AWAY, ids=lambda r: type(r).__name__)
def test_a_superlink_that_does_not_answer_is_waited_for(reason, place, answering):
    link = answering("running", reason, reason, [], "finished:completed")
    ended(place, "complete")
    assert run_task(place, "may", say=print) == "complete"
    assert len(link.started) == 1


def test_a_new_run_waits_until_the_superlink_listens(place, answering, monkeypatch):
    looks = iter([False, False, True])
    slept = []
    monkeypatch.setattr(programs, "is_listening", lambda _: next(looks))
    monkeypatch.setattr(tasks.time, "sleep", slept.append)
    answering("finished:failed", "finished:completed")
    ended(place, "complete")
    run_task(place, "may", say=print)
    assert slept.count(1) == 2


def test_a_run_that_never_ends_is_an_error(place, answering, monkeypatch):
    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

        def sleep(self, _):
            self.now += 100.0

    monkeypatch.setattr(tasks, "time", Clock())
    answering(*["running"] * 500)
    with pytest.raises(TaskError, match="the last is running"):
        run_task(place, "may", say=lambda _: None)


def test_settings_that_would_fail_in_every_run_are_checked_before_the_first(place, answering):
    link = answering()
    settings = place.settings_file.read_text()
    for wrong, words in (("min_clients = 2", "min_clients is 2"), ('validation = "v"', "v")):
        place.settings_file.write_text(f"{settings}{wrong}\n")
        with pytest.raises((ValueError, OSError), match=words):
            run_task(place, "may", say=print)
    assert not link.started


def test_a_deadline_of_the_command_reaches_the_run_and_is_checked_before(place, answering, capsys):
    link = answering("finished:completed")
    ended(place, "complete")
    command = ["federation", "task", str(place.folder), "may", "--deadline"]
    assert cli([*command, "0"]) == 2
    assert "deadline must be from 1" in capsys.readouterr().err
    assert not link.started
    assert cli([*command, "90"]) == 0
    assert link.deadline == 90.0


def test_only_an_open_task_can_be_closed(place, capsys):
    assert cli(["federation", "close", str(place.folder)]) == 2
    assert "no task is open" in capsys.readouterr().err
    with locked(place.state, task="may"):
        assert cli(["federation", "close", str(place.folder)]) == 2  # it will be open in a moment
        assert "no task is open; may is under way" in capsys.readouterr().err
        book(place).set_task("may")
        assert cli(["federation", "close", str(place.folder)]) == 0
    assert capsys.readouterr().out == "task may ends now\n"
    assert book(place).fact(CLOSED) == "may"
    with locked(place.state, task="forget"):
        assert cli(["federation", "close", str(place.folder)]) == 2
    assert book(place).fact(CLOSED) == "may"


def test_a_second_task_at_the_same_time_is_an_error(place, answering):
    link = answering()
    book(place).set_task("may")
    close = "task may is open; .*; `fedran federation close` ends"
    with locked(place.state, task="may"), pytest.raises(TaskError, match=close):
        run_task(place, "june", say=print)
    other = "^maintenance is under way; start june when it has ended$"  # `close` does not end it
    with locked(place.state, task="maintenance"), pytest.raises(TaskError, match=other):
        run_task(place, "june", say=print)
    assert not link.started
