"""What is wrong with a site, with a remedy for each problem; and the state of a site."""

import io
import json
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from rich.console import Console

from fedran.core.errors import Refused
from fedran.federation.ops import keys
from fedran.federation.ops.flower import free_port
from fedran.federation.ops.scaffold import make_site
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.secure.pinning import PinnedRoster, roster_fingerprint
from fedran.federation.site import doctor
from fedran.federation.site.doctor import examine
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.report import ALARMS, read_site
from fedran.federation.site.settings import SitePaths
from fedran.federation.site.upload import Site
from fedran.federation.status.terminal import print_site
from helpers.made_site import OFFER, rows


@pytest.fixture
def paths(tmp_path):
    keys.make_certificates(tmp_path / "tls")
    ca, server = tmp_path / "tls" / "ca.crt", f"127.0.0.1:{free_port()}"
    make_site(tmp_path / "site", federation="trial", client="site-1", server=server, ca=ca)
    return SitePaths(tmp_path / "site")


def problems(paths):
    return {c.name: f"{c.text}; {c.remedy}" for c in examine(paths) if not c.ok}


def test_a_new_site_lacks_data_a_server_and_a_running_service(paths):
    found = problems(paths)
    assert set(found) == {"data", "server", "service"}
    assert "put TASK.npz or TASK.csv or TASK.parquet into" in found["data"]
    assert "may be down; check that 127.0.0.1:" in found["server"]
    assert "certificate" not in found["server"]
    assert "fedran federation client" in found["service"]
    assert all(check.ok or check.remedy for check in examine(paths))


def test_rows_that_check_would_refuse_are_a_problem_with_the_command_that_says_more(paths):
    def data():
        return {check.name: check for check in examine(paths)}["data"]

    X, y = rows()
    np.savez(paths.folder / "data" / "may.npz", features=X, labels=y)
    assert data().text == "files with rows: 1; `check` finds no error in the newest 1"
    np.savez(paths.folder / "data" / "june.npz", features=np.where(X > 2, np.nan, X), labels=y)
    assert "task june: " in data().text
    assert "NaN" in data().text
    assert data().remedy == f"fedran federation check {paths.folder} june says more"
    (paths.folder / "data" / "june.npz").write_bytes(b"nonsense")
    assert not data().ok


def test_a_site_that_runs_and_is_not_admitted_is_a_problem(paths):
    note = {"state": "the SuperNode ended: not admitted", "connected": False}
    (paths.folder / "state").mkdir(exist_ok=True)
    path = paths.folder / "state" / "connection.json"
    path.write_text(json.dumps(note))
    with locked(paths.folder / "log"):
        assert "the site runs. the SuperNode ended: not admitted" in problems(paths)["service"]
        path.write_text(json.dumps({**note, "connected": True}))
        assert "service" not in problems(paths)


def test_lost_keys_wrong_names_and_missing_certificates_are_named(paths, monkeypatch):
    (paths.folder / "site.key").unlink()
    (paths.folder / "node.key").chmod(0o644)
    (paths.folder / "ca.crt").write_text("nonsense")
    text = paths.settings_file.read_text()
    paths.settings_file.write_text(text.replace("127.0.0.1", "no-such-host.invalid"))
    usage = shutil.disk_usage(paths.folder)._replace(free=1000)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    found = problems(paths)
    assert {"site key", "node key", "certificate", "DNS", "disk"} <= set(found)
    assert "no such file" in found["site key"]
    assert "chmod 600" in found["node key"]
    assert "no-such-host.invalid is not known" in found["DNS"]


def test_a_roster_that_nobody_pinned_or_that_has_changed_is_named(paths):
    def roster():
        return {c.name: c for c in examine(paths)}["roster"]

    text = paths.settings_file.read_text()
    paths.settings_file.write_text(text.replace('privacy = "none"', 'privacy = "secure"'))
    assert (roster().ok, roster().text) == (False, "no roster is pinned")
    pinned = PinnedRoster(paths.folder / "state")
    clients = {f"site-{i}": SiteKey.generate().public for i in (1, 2, 3)}
    pinned.pin(clients, roster_fingerprint(clients))
    assert roster().ok
    with pytest.raises(Refused):
        pinned.require({"site-1": clients["site-1"]})
    assert "another roster" in roster().text


def test_a_clock_that_is_wrong_is_named(paths, monkeypatch):
    answer = SimpleNamespace(headers={"Date": "Mon, 16 Nov 2026 06:00:00 GMT"})
    monkeypatch.setattr(doctor, "why_unreachable", lambda *_: ("", ""))
    connection = doctor.http.client.HTTPSConnection
    monkeypatch.setattr(connection, "request", lambda *_: None)
    monkeypatch.setattr(connection, "getresponse", lambda _: answer)
    monkeypatch.setattr(doctor.time, "time", lambda: 1794808800.0 + 300)
    assert "300 s ahead of the server; set the clock with NTP" in problems(paths)["clock"]


def test_the_status_of_a_site_lists_uploads_receipts_and_alarms(paths):
    X, y = rows()
    np.savez(paths.folder / "data" / "may.npz", features=X, labels=y)
    np.savez(paths.folder / "data" / "june.npz", features=X, labels=[*y[:-2], 7, 7])
    site = Site.load(paths.settings_file)
    for n, task in enumerate(("may", "june")):
        site.prepare(type(OFFER)(**{**vars(OFFER), "task": task}))
        os.utime(site.outbox.folder / f"{task}.envelope", (1e9 + n, 1e9 + n))
    reason = "client: expected a site of the roster\x1b[31m"
    Outbox(site.outbox.folder).settle(Receipt(Code.UNKNOWN_CLIENT, "site-1", "may", "d", reason))
    state = paths.folder / "state"
    (state / ALARMS).write_text('nonsense\n{"at": 1.0, "reason": "evil [red]"}\n')
    (state / "connection.json").write_text('{"at": 1.5, "state": "connected to x:1"}')
    (site.outbox.folder / "gone.envelope").symlink_to("nowhere")  # listed, then not found
    report = read_site(paths)
    assert [(t.task, t.code) for t in report.tasks] == [
        ("may", "unknown_client"),
        ("june", "pending"),
    ]
    assert report.tasks[0].classes == [(0, 20), (1, 20), (2, 20)]
    assert (report.tasks[0].withheld, report.tasks[1].withheld) == ([], [(7, 2)])
    assert (report.running, report.last_contact, len(report.alarms)) == (False, 1.5, 1)
    assert json.loads(report.to_json())["versions"]["python"]
    console = Console(width=100, record=True, file=io.StringIO())
    print_site(report, console)
    text = console.export_text()
    for words in ("site not running", "ran last: connected to x:1", "june: pending", "evil [red]"):
        assert words in text
    assert "contains: 0 (20), 1 (20), 2 (20)" in text
    assert "withheld: 7 (2)" in text
