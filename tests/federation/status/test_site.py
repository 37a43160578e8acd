"""The status of a site, read from its files."""

import io
import json
import os
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from rich.console import Console

from fedran.federation.ops.scaffold import make_site
from fedran.federation.protocol.keys import make_certificates
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import ALARMS, SitePaths
from fedran.federation.site.upload import Site
from fedran.federation.status.site import read_site
from fedran.federation.status.terminal import print_status
from helpers.federation.made_site import OFFER, rows


def test_the_status_of_a_site_lists_uploads_receipts_and_alarms(tmp_path):
    make_certificates(tmp_path / "tls")
    given = {"federation": "trial", "client": "site-1", "server": "127.0.0.1:9443"}
    make_site(tmp_path / "site", **given, ca=tmp_path / "tls" / "ca.crt")
    paths = SitePaths(tmp_path / "site")
    X, y = rows()
    np.savez(paths.folder / "data" / "may.npz", features=X, labels=y)
    np.savez(paths.folder / "data" / "june.npz", features=X, labels=y)
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
    assert [(u.task, u.state) for u in report.uploads] == [
        ("may", "unknown_client"),
        ("june", "pending"),
    ]
    assert (report.running, report.checked, len(report.findings)) == (False, 1.5, 1)
    assert json.loads(report.to_json())["client"] == "site-1"
    np.savez(paths.folder / "data" / "june.npz", features=X[:30], labels=y[:30])
    site.prepare(replace(OFFER, task="june"), revise=True)
    revised = read_site(paths).uploads[-1]
    assert (revised.task, revised.state) == ("june", "pending")
    assert revised.reason.startswith("revision 1")
    console = Console(width=100, record=True, file=io.StringIO())
    print_status(report, console)
    text = console.export_text()
    for words in ("site not running", "ran last: connected to x:1", "june, pending ", "evil [red]"):
        assert words in text
