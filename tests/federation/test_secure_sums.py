"""Secure sums with a real SuperLink and real SuperNodes: three sites, then faults in the middle.

`make test-faults` runs the tests of faults.
"""

import os
import signal
import threading
from contextlib import closing

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedran.federation.secure.masking.attempt import STAGES
from fedran.federation.secure.server.open_sum import read_file
from fedran.federation.server.store.database import Database
from helpers.federation.real_federation import federation, wait_for

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the federation runs on Linux")


def cohorts(fed):
    """Task and members of every sum in the store."""
    with closing(Database(fed.server.state, read_only=True)) as database:
        sums = [upload for upload in database.uploads() if upload.members]
        return [(found.task, [site for site, _ in found.members]) for found in sums]


def stage_of(fed, task):
    """The exchange in which a task's sum is, as a number; -1 before the first."""
    try:
        found = read_file(fed.server.state / "sums" / f"{task}.sum")[0].get("stage")
    except (OSError, ValueError):
        return -1
    return len(STAGES) if found is None else STAGES.index(found)


def rows_of(fed, task, names):
    """How many rows some sites have for a task."""
    total = 0
    for name in names:
        with np.load(fed.site(name).folder / "data" / f"{task}.npz") as file:
            total += len(file["labels"])
    return total


@pytest.mark.waits
def test_three_sites_learn_from_a_sum(tmp_path):
    names = ["site-1", "site-2", "site-3"]
    with federation(tmp_path / "t", 3, privacy="secure", out_features=256, catch_up=0) as fed:
        assert fed.task("task-1") == "complete"
        assert cohorts(fed) == [("task-1", names)]
        (event,) = fed.events("upload", outcome="accepted")
        assert (event["client"], event["rows"]) == ("cohort-1", rows_of(fed, "task-1", names))
        assert all(fed.accuracy(name) > 0.97 for name in names)
        assert not any(fed.outbox(name).pending() for name in names), "no plain upload was made"
        assert not list((fed.server.state / "sums").iterdir())


def when(fed, task, stage, act):
    """Do something in another thread as soon as a task's sum has reached a stage."""

    def run():
        wait_for(lambda: stage_of(fed, task) >= STAGES.index(stage), f"stage {stage}")
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.faults
def test_a_site_killed_in_the_middle_is_left_out(tmp_path):
    settings = {"exchange_seconds": 40, "min_clients": 3, "catch_up": 0}
    with federation(tmp_path / "t", 4, privacy="secure", **settings) as fed:
        killer = when(fed, "task-1", "share", lambda: fed.kill("site-4", signal.SIGSTOP))
        result = fed.task("task-1")
        killer.join()
        assert result in ("complete", "quorum")
        ((_, members),) = cohorts(fed)
        assert set(members) >= {"site-1", "site-2", "site-3"}
        (event,) = fed.events("upload", outcome="accepted")
        assert event["rows"] == rows_of(fed, "task-1", members)
        fed.kill("site-4", signal.SIGCONT)
        assert fed.task("task-2") == "complete"
        assert cohorts(fed)[-1] == ("task-2", [f"site-{i}" for i in (1, 2, 3, 4)])


@pytest.mark.faults
def test_private_sums_spend_a_budget_and_a_task_beyond_it_is_refused(tmp_path):
    with federation(tmp_path / "t", 3, privacy="dp", total_epsilon=8.0, catch_up=0) as fed:
        assert fed.task("task-1") == "complete"
        names = ["site-1", "site-2", "site-3"]
        assert cohorts(fed) == [("task-1", names)]
        (event,) = fed.events("upload", outcome="accepted")
        assert abs(event["rows"] - rows_of(fed, "task-1", names)) < 100
        assert all(fed.accuracy(name) > 0.5 for name in names)
        code, said = fed.command("status", fed.folder)
        assert (code, "has spent at most epsilon 8" in said) == (0, True), said
        code, said = fed.command("task", fed.folder, "task-2")
        assert code != 0
        assert "task task-2 is refused: total_epsilon is 8, of which 8 is spent" in said
        assert cohorts(fed) == [("task-1", names)]
        with closing(Database(fed.server.state, read_only=True)) as database:
            assert [(c.task, c.epsilon) for c in database.ledger()] == [("task-1", 8.0)]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("privacy", "stage"), [("secure", "mask"), ("secure", "confirm"), ("dp", "reveal")]
)
def test_a_server_killed_in_the_middle_of_a_sum_continues_with_it(tmp_path, privacy, stage):
    with federation(tmp_path / "t", 3, privacy=privacy, catch_up=0) as fed:
        killer = when(fed, "task-1", stage, lambda: fed.kill("server"))
        assert fed.task("task-1") == "complete"
        killer.join()
        assert any("it is started again" in line for line in fed.said)
        names = ["site-1", "site-2", "site-3"]
        assert cohorts(fed) == [("task-1", names)]
        (event,) = fed.events("upload", outcome="accepted")
        noise = 100 if privacy == "dp" else 0
        assert event["client"] == "cohort-1"
        assert abs(event["rows"] - rows_of(fed, "task-1", names)) <= noise
        assert not fed.events("sum", state="failed")
        with closing(Database(fed.server.state, read_only=True)) as database:
            assert [charge.task for charge in database.ledger()] == ["task-1"]
