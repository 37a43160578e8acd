"""Secure sums in the status of a server and of a site."""

import io

import pytest

pytest.importorskip("flwr")

from rich.console import Console

from fedran.federation.protocol.identity import SiteKey
from fedran.federation.site.settings import SitePaths
from fedran.federation.status.format import format_uploads
from fedran.federation.status.reader import Reader
from fedran.federation.status.site import read_site
from fedran.federation.status.terminal import print_status
from fedran.federation.status.web import render
from helpers.federation.secure_federation import SecureFederation, rows


def printed(show, what):
    console = Console(file=io.StringIO(), width=80, highlight=False)
    show(what, console)
    out = console.file.getvalue()
    assert max(map(len, out.splitlines())) <= 80
    return " ".join(out.split())


@pytest.fixture
def late(tmp_path, monkeypatch):
    """Three of five sites have a sum; two wait for a third one."""
    federation = SecureFederation(tmp_path, monkeypatch, n=5, tasks=("may",))
    federation.run("may", federation.names[:3], min_clients=3)
    federation.run("may", federation.names, min_clients=3)
    return federation


def test_the_server_shows_cohorts_and_who_waits(late):
    status = Reader(late.server).read()
    (cohort,), (waiting,) = status.cohorts, status.sums
    assert (cohort.task, cohort.client, cohort.members) == ("may", "cohort-1", late.names[:3])
    assert (waiting.task, waiting.state, waiting.members) == ("may", "advertise", late.names[3:])
    (task,) = status.tasks
    assert (task.uploads, sorted(task.answered), task.missing) == (3, late.names[:3], [])
    assert format_uploads(task) == "3 of 5, waiting for others: site-4, site-5"
    (member,) = [site for site in status.sites if site.client == "site-1"]
    assert (member.uploads, member.bytes, member.rows) == (1, None, None)
    shown = printed(print_status, status)
    assert f"roster {status.roster}" in shown
    under_way = (
        "attempt 2, exchange 1 of 5 (advertise): 3 sites are needed, answered: site-4, site-5"
    )
    assert under_way in shown
    assert "task may, cohort-1: site-1, site-2, site-3 (120 rows)" in shown
    page = " ".join(render("/sections", status).decode().split())
    assert under_way in page
    assert status.roster in page


def test_a_site_that_cannot_add_its_rows_is_named_and_not_those_that_wait_for_it(
    tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO")
    federation = SecureFederation(tmp_path, monkeypatch, tasks=("may",))
    X, y = rows(0)
    federation.put("site-2", "may", X, [*y[:-1], 9])
    assert federation.run("may") == "short"
    status = Reader(federation.server).read()
    told = "0 of 3, site-2 failed, waiting for others: site-1, site-3"
    assert format_uploads(status.tasks[0]) == told
    shown = printed(print_status, status)
    assert "answered: site-1, site-3, refused by site-2" in shown
    assert "task may: short, 0 uploads in, waiting for others: site-1, site-3" in caplog.text


def test_after_a_sum_is_forgotten_its_members_are_missing(late):
    with late.store() as store:
        head = {"task": "may", "classes": 3, "bytes": 9, "accuracy": 0.5, "seconds": 1.0}
        store.database.add_head("d", **head)
        store.database.set_task("may", "complete", asked=late.names[:3], min_clients=3)
    assert Reader(late.server).read().tasks[0].accuracy == 0.5
    with late.store() as store:
        store.forget("cohort-1", None, "me", SiteKey.generate())
    (task,) = Reader(late.server).read().tasks
    assert (task.state, task.accuracy) == ("short", None)
    assert format_uploads(task) == "0 of 3, missing site-1, site-2, site-3"


def test_a_site_shows_its_sums_and_a_roster_that_has_changed(late):
    paths = SitePaths(late.folder / "sites" / "site-1")
    report = read_site(paths)
    ((task, state, members),) = [(s.task, s.state, s.members) for s in report.uploads]
    assert (task, state, members) == ("may", "accepted", late.names[:3])
    assert [site.mark for site in report.sites] == [""] * 5
    shown = printed(print_status, report)
    assert f"roster {report.roster}" in shown
    assert all(site.key in shown for site in report.sites)
    assert "may: accepted: attempt 1, answered up to reveal" in shown
    late.set_roster(late.names[:4], pin=False)
    late.run("", late.names[:1])
    assert "shows another roster" in printed(print_status, read_site(paths))
