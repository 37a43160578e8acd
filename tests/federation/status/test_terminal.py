"""The status in the terminal."""

import io
import json

import pytest

pytest.importorskip("flwr")

from rich.console import Console

from fedran.federation.status.reader import Reader
from fedran.federation.status.terminal import print_status
from fedran.federation.status.web import render
from helpers.federation.recorded_federation import RecordedFederation


def test_the_status_fits_into_80_columns_and_is_escaped(tmp_path):
    recorded = RecordedFederation(tmp_path)
    (recorded.server / "roster.toml").write_text("[clients]\n")
    recorded.task("may", deadline=600.0)
    recorded.upload("site-1", "may", classes=[["[red]cat", 5], *([n, 1] for n in range(20))])
    recorded.upload("site-2", "may", "refused", reason="too loud")
    recorded.events.write("declined", client="site-3", task="may", reason="no rows")
    recorded.head("may", 0.9345, 21)
    left_out = {"head": "d", "agreement": 0.87654, "largest_group": 5}
    left_out["sites"] = {"site-1": [["[red]cat", 5, 4], [3, 15, 1]], "site-9": []}
    aside = {"client": "site-2", "label": None, "waits": False, "reason": "[red]worse"}
    alone = {"client": "site-3", "waits": True, "reason": "no other site"}
    left_out["set_aside"] = [aside, alone | {"label": "cat"}, alone | {"label": "dog"}]
    recorded.database.set_fact("judged", json.dumps(left_out))
    recorded.database.set_fact("pinned", json.dumps({"task": "may", "last_upload": 9}))
    for n in range(12):
        recorded.upload("site-1", "may", "refused", verified=False, reason=f"[bold]no\x1b[31m {n}")
    console = Console(file=io.StringIO(), width=80, highlight=False)
    with recorded.task_running("may"):
        print_status(Reader(tmp_path).read(), console)
    out = console.file.getvalue()
    words = " ".join(out.split())
    for expected in (
        "accuracy 93.5 %, 21 classes",
        "leave-one-out agreement 87.7 %",
        "25.0 %",
        "3 of 3 sites answered",
        "site-1 not in roster",
        "site-2, set aside: [red]worse",
        "site-3, waits: classes cat, dog: no other site",
        r"[bold]no\x1b[31m 11",
        "The classifier after task may is in service again; later uploads wait.",
        "and 5 more; --json prints all",
    ):
        assert expected in words
    for command in (
        f"forget {tmp_path} site-2",
        f"accept {tmp_path} site-2",
        f"accept {tmp_path} site-3",
    ):
        assert f"fedran federation {command}\n" in out
    assert "\x1b" not in out
    lines = [line for line in out.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("digest", "known"), [("d", True), ("older", False)])
def test_what_others_say_is_shown_beside_the_head_that_it_is_about(digest, known, tmp_path):
    recorded = RecordedFederation(tmp_path)
    recorded.upload("site-1", "may")
    recorded.upload("site-2", "may")
    recorded.head("may")
    said = {"head": digest, "agreement": 0.75, "largest_group": 1}
    said["sites"] = {"site-1": [["cat", 10, 9], ["dog", 30, 1]], "site-2": []}
    recorded.database.set_fact("judged", json.dumps(said))
    status = Reader(tmp_path).read()
    (first, second, _) = status.sites
    console = Console(file=io.StringIO(), width=80, highlight=False)
    print_status(status, console)
    page, metrics = (render(path, status).decode() for path in ("/", "/metrics"))
    for shown in (console.file.getvalue(), page):
        assert ("25.0 %" in shown, "75.0 %" in shown) == (known, known)
    assert ('fedran_site_agreement{site="site-1"} 0.25' in metrics) == known
    assert 'fedran_site_agreement{site="site-2"}' not in metrics
    assert ("fedran_head_left_out 0.75" in metrics) == known
    assert (first.agreement, second.agreement) == (0.25 if known else None, None)
    assert json.loads(status.to_json())["sites"][0]["agreement"] == first.agreement


def test_a_site_that_failed_is_not_one_that_has_nothing_to_send(tmp_path):
    recorded = RecordedFederation(tmp_path)
    recorded.task("may", deadline=600.0)
    recorded.events.write("declined", client="site-1", task="may", reason="memory", failed=True)
    recorded.events.write("declined", client="site-2", task="may", reason="no rows yet")
    console = Console(file=io.StringIO(), width=100, highlight=False)
    with recorded.task_running("may"):
        status = Reader(tmp_path).read()
        print_status(status, console)
    answers = {"site-1": "failed", "site-2": "nothing to send", "site-3": "missing"}
    assert (status.tasks[0].answers, status.set_aside) == (answers, [])
    (problem,) = status.problems
    assert (problem.state, problem.reason) == ("failed", "memory")
    words = " ".join(console.file.getvalue().split())
    assert "memory" in words
    assert "failed: site-1; nothing to send: site-2" in words
