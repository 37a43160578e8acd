"""The status in the terminal."""

import io
import json
import time

import pytest

pytest.importorskip("flwr")

from rich.console import Console

from fedran.federation.status.reader import Reader
from fedran.federation.status.terminal import print_status
from helpers.federation.recorded_federation import RecordedFederation


def test_the_status_fits_into_80_columns_and_is_escaped(tmp_path):
    recorded = RecordedFederation(tmp_path)
    (recorded.server / "roster.toml").write_text("[clients]\n")
    recorded.task("may", deadline=600.0)
    recorded.upload("site-1", "may", classes=[["[red]cat", 5], *([n, 1] for n in range(20))])
    recorded.upload("site-2", "may", "quarantined", reason="too loud")
    recorded.quarantine("site-2", "may", "too loud")
    recorded.events.write("declined", client="site-3", task="may", reason="no rows")
    recorded.head("may", 0.9345, 21)
    held = {"at": time.time(), "task": "june", "digest": "d" * 64, "reason": "[red]worse"}
    uploads = [["site-2", "june", 12.3], ["site-3", "june", 3.0]]
    recorded.database.set_fact("held", json.dumps({**held, "uploads": uploads}))
    for n in range(12):
        recorded.upload("site-1", "may", "refused", verified=False, reason=f"[bold]no\x1b[31m {n}")
    console = Console(file=io.StringIO(), width=80, highlight=False)
    with recorded.task_running("may"):
        print_status(Reader(tmp_path).read(), console)
    out = console.file.getvalue()
    words = " ".join(out.split())
    for expected in (
        "accuracy 93.5 %",
        "2 of 3 sites answered",
        "site-1 not in roster",
        "[red]worse",
        r"[bold]no\x1b[31m 11",
        "and 5 more; --json prints all",
    ):
        assert expected in words
    for command in (
        f"accept {tmp_path} site-2 may",
        f"forget {tmp_path} site-2 --task june",
        f"forget {tmp_path} site-3 --task june",
        f"rollback {tmp_path} --release",
    ):
        assert f"fedran federation {command}\n" in out
    assert "\x1b" not in out
    lines = [line for line in out.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80


def test_a_site_that_failed_is_not_one_that_has_nothing_to_send(tmp_path):
    recorded = RecordedFederation(tmp_path)
    recorded.task("may", deadline=600.0)
    recorded.events.write("declined", client="site-1", task="may", reason="memory", failed=True)
    recorded.events.write("declined", client="site-2", task="may", reason="no rows yet")
    console = Console(file=io.StringIO(), width=100, highlight=False)
    with recorded.task_running("may"):
        status = Reader(tmp_path).read()
        print_status(status, console)
    assert (status.tasks[0].failed, status.held) == (["site-1"], None)
    assert [p.state for p in status.problems] == ["declined", "failed"]
    words = " ".join(console.file.getvalue().split())
    assert "failed: memory" in words
    assert "declined: no rows yet" in words
    assert "1 had nothing to send, site-1 failed" in words
