"""A task from its owner's chair: Flower may lose runs, or be away."""

import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.federation.ops import flower
from fedran.federation.ops import task_run as module
from fedran.federation.ops.task_run import TRIES, run_task
from fedran.federation.protocol.identity import Roster, SiteKey
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.logs import log_file
from fedran.federation.server.events import EventLog
from fedran.federation.server.settings import ServerPaths

TRAFFIC = {"inbound-bytes": 3000, "outbound-bytes": 2000, "total-bytes": 5000}


class Flower:
    """Runs end as a test says; an exception is raised instead of an answer."""

    def __init__(self, place, *answers):
        self.place, self.answers, self.started = place, list(answers), []

    def __call__(self, place, *words, timeout=60.0):
        if words[0] == "run":
            self.started.append(words)
            return {"run-id": 100 + len(self.started)}
        assert words == ("list", flower.LINK, "--run-id", str(100 + len(self.started)))
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        if not isinstance(found, str):
            return {"runs": found}
        return {"runs": [{"run-id": 1, "status": found, "network-traffic": TRAFFIC}]}


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "server.toml").write_text('federation = "trial"\nin_features = 6\n')
    Roster({"site-1": SiteKey.generate().public}).save(tmp_path / "roster.toml")
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(module, "POLL", 0.0)
    monkeypatch.setattr(flower, "listening", lambda _: True)
    with locked(tmp_path / "log"):
        yield ServerPaths(tmp_path)


@pytest.fixture
def answering(place, monkeypatch):
    def make(*answers):
        found = Flower(place, *answers)
        monkeypatch.setattr(flower, "ask", found)
        return found

    return make


def book(place):
    return EventLog(place.state / "events.jsonl")


def ended(place, state, task="may"):
    book(place).write("task", task=task, state="open")
    book(place).write("task", task=task, state=state)


def test_a_task_without_a_server_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "server.toml").write_text('federation = "trial"\nin_features = 6\n')
    with pytest.raises(Refused, match="expected a running server, got none; start it with"):
        run_task(ServerPaths(tmp_path), "may", say=print)


@pytest.mark.parametrize("task", ["", "a b", "../x", 'x" other="1', "x" * 65, "a\nb"])
def test_a_name_that_is_none_never_reaches_flower(task, place, answering):
    link = answering()
    with pytest.raises(Refused, match="task: expected"):
        run_task(place, task, say=print)
    assert link.started == []


@pytest.mark.parametrize("verdict", ["complete", "quorum", "short"])
def test_the_verdict_is_the_servers_own(verdict, place, answering):
    link = answering("pending", "running", "finished:completed")
    book(place).write("task", task="may", state="short")
    book(place).write("task", task="june", state="complete")
    ended(place, verdict)
    upload = {"client": "site-1", "outcome": "accepted", "bytes": 2_500_000}
    book(place).write("upload", task="may", **upload)
    book(place).write("upload", task="may", **{**upload, "outcome": "refused"})
    book(place).write("upload", task="june", **upload)
    said = []
    done = run_task(place, "may", say=said.append)
    assert (done.task, done.verdict, done.transport) == ("may", verdict, 5000)
    assert said[-1] == (
        f"task may: {verdict}; uploads 2.500 MB, at the transport 0.003 MB in and 0.002 MB out"
    )
    assert link.started == [("run", ".", flower.LINK, "--run-config", 'task="may"')]
    noted = [e for e in book(place).read() if e["event"] == "run"][-1]
    assert (noted["task"], noted["transport"], noted["status"]) == (
        "may",
        5000,
        "finished:completed",
    )


def test_a_run_that_told_nothing_is_no_success(place, answering):
    answering("finished:completed")
    assert run_task(place, "may", say=print).verdict == "unknown"


def test_the_servers_lines_are_shown_as_they_come(place, answering, monkeypatch):
    path = log_file(place.folder)
    path.write_text("before\n")
    answering("running", "running", "finished:completed")
    lines = iter(["one\ntw", "o\n", "three\n"])

    def sleep(_):
        with path.open("a") as file:
            file.write(next(lines))

    monkeypatch.setattr(module.time, "sleep", sleep)
    said = []
    run_task(place, "may", say=said.append)
    assert said[:-1] == ["one", "two", "three"]


def test_a_run_that_failed_is_started_again(place, answering):
    link = answering("finished:failed", "running", "finished:stopped", "finished:completed")
    ended(place, "complete")
    said = []
    assert run_task(place, "may", say=said.append).verdict == "complete"
    assert len(link.started) == 3
    assert sum("starting it again" in line for line in said) == 2


def test_but_not_for_ever(place, answering):
    link = answering(*["finished:failed"] * 50)
    said = []
    with pytest.raises(Refused, match=f"got {TRIES} that did not: finished:failed"):
        run_task(place, "may", say=said.append)
    assert len(link.started) == TRIES
    assert sum("starting it again" in line for line in said) == TRIES - 1


AWAY = [Refused("flwr list", "an answer", "none"), OSError(111, "refused"), TimeoutError()]


@pytest.mark.parametrize("reason", AWAY, ids=lambda r: type(r).__name__)
def test_a_superlink_that_is_away_is_waited_for(reason, place, answering):
    link = answering("running", reason, reason, [], "finished:completed")
    ended(place, "complete")
    assert run_task(place, "may", say=print).verdict == "complete"
    assert len(link.started) == 1


def test_a_restart_waits_until_the_link_listens(place, answering, monkeypatch):
    looks = iter([False, False, True])
    slept = []
    monkeypatch.setattr(flower, "listening", lambda _: next(looks))
    monkeypatch.setattr(module.time, "sleep", slept.append)
    answering("finished:failed", "finished:completed")
    ended(place, "complete")
    run_task(place, "may", say=print)
    assert slept.count(1) == 2


def test_a_run_is_not_watched_for_ever(place, answering, monkeypatch):
    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

        def sleep(self, _):
            self.now += 100.0

    monkeypatch.setattr(module, "time", Clock())
    answering(*["running"] * 500)
    with pytest.raises(Refused, match="that did not: running"):
        run_task(place, "may", say=lambda _: None)


def test_bytes_of_forwarded_sums_are_told_with_their_task(place, answering):
    answering("finished:completed")
    ended(place, "complete")
    book = EventLog(place.state / "events.jsonl")
    book.write("upload", task="may.sum-1", client="edge", outcome="accepted", bytes=5_000_000)
    said = []
    run_task(place, "may", say=said.append)
    assert "uploads 5.000 MB" in said[-1]


def test_what_would_fail_in_every_run_is_refused_before_the_first(place, answering):
    link = answering()
    settings = place.settings_file.read_text()
    for wrong, words in (("min_clients = 2", "min_clients is 2"), ('validation = "v"', "v")):
        place.settings_file.write_text(f"{settings}{wrong}\n")
        with pytest.raises((ValueError, OSError), match=words):
            run_task(place, "may", say=print)
    assert not link.started
