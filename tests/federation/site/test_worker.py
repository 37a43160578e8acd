"""The work for a task in a child process: its limits, and how every failure is reported."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.core.errors import Refused
from fedran.federation.protocol.configuration import load_settings
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.messages import Offer, open_envelope
from fedran.federation.site import worker as module
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.settings import SiteSettings
from fedran.federation.site.upload import backbone_loader
from fedran.federation.site.worker import (
    WorkerFailed,
    text_for_server,
    work,
    work_in_child,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="the federation runs on Linux")
OFFER = Offer("trial", "may", 6, 48, "relu", 0, "test", 20_000)
HEAD = """
import os, signal, subprocess, sys, threading, time
import numpy as np

def load(task):
"""
ROWS = """
    y = np.arange(60) % 3
    return np.random.default_rng(0).random((60, 6)) + np.eye(6)[y], y
"""


def site_folder(folder, entry=None, settings=""):
    """A site with its key, and rows in a file or from the text of a function."""
    folder.mkdir(exist_ok=True)
    SiteKey.generate().save(folder / "site.key")
    data = 'folder = "."' if entry is None else f'entry = "rows_of_{folder.name}:load"'
    path = folder / "site.toml"
    path.write_text(f'federation = "trial"\nclient = "site-1"\n{data}\n{settings}')
    if entry is None:
        y = np.arange(60) % 3
        np.savez(folder / "may.npz", features=np.random.default_rng(0).random((60, 6)), labels=y)
    else:
        (folder / f"rows_of_{folder.name}.py").write_text(HEAD + entry)
    return path


def apart(path, offer=OFFER):
    """What went wrong, however it is reported."""
    try:
        return work_in_child(path, load_settings(SiteSettings, path), offer).text
    except WorkerFailed as failed:
        return text_for_server(failed, path.parent)


def outbox_of(path):
    return Outbox(path.parent / "state" / "outbox")


@linux
def test_a_child_makes_the_same_upload_as_its_parent_would(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("FLWR_SECRET", "4711")
    talk = "    print('x' * 10**6, os.environ.get('FLWR_SECRET'), os.getcwd())\n"
    path = site_folder(tmp_path / "apart", talk + ROWS)
    assert apart(path) == ""
    out, err = capfd.readouterr()
    assert (out, len(err) > 10**6) == ("", True)
    assert f"None {path.parent}" in err
    child = open_envelope(outbox_of(path).envelope("may")).upload
    here = site_folder(tmp_path / "here", ROWS)
    assert work(here, OFFER).text == ""
    assert fedran.decode(child).classes == (0, 1, 2)
    assert child == open_envelope(outbox_of(here).envelope("may")).upload


ENDS = {
    "raises": ("raise ValueError('secret')", "expected rows and labels, got ValueError"),
    "leaves": ("sys.exit('secret')", "expected rows and labels, got SystemExit"),
    "interrupts": ("raise KeyboardInterrupt", "the process that makes the upload ended with"),
    "silent": ("os._exit(0)", "the upload ended with status 0"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "ended with signal 9; see the site's log"),
    "greedy": ("return np.ones((10**9, 6)), [0] * 10**9", "out of memory"),
    "strange": ("return [[1, 2], [3]], [0, 1]", "task may: "),
}


@linux
@pytest.mark.parametrize("name", ENDS)
def test_every_failure_of_the_work_is_reported_in_one_sentence(name, tmp_path, capfd):
    code, words = ENDS[name]
    path = site_folder(tmp_path / name, f"    {code}\n", "memory_mib = 512\n")
    told = apart(path)
    assert words in told
    assert told.startswith("task may: ")
    assert "\n" not in told
    assert "secret" not in told
    assert str(tmp_path) not in told
    assert outbox_of(path).pending() == []
    here = capfd.readouterr().err + (path.parent / "log" / "fedran.log").read_text()
    assert ("secret" in here) == ("secret" in code)


@linux
def test_a_child_that_hangs_or_leaves_a_process_behind_is_ended(tmp_path):
    hang = "    print(subprocess.Popen(['sleep', '300']).pid, file=open('pid', 'w'), flush=True)\n"
    path = site_folder(tmp_path / "hang", hang + "    time.sleep(300)\n", "seconds = 8\n")
    start = time.monotonic()
    assert "within 8 seconds" in apart(path)
    assert time.monotonic() - start < 15
    pid = int((path.parent / "pid").read_text())
    deadline = time.monotonic() + 5
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    stay = (
        "    if os.fork() == 0:\n        os.setsid()\n        time.sleep(20)\n        os._exit(0)\n"
    )
    stay += "    threading.Thread(target=time.sleep, args=(60,)).start()\n"
    path, start = site_folder(tmp_path / "stay", stay + ROWS), time.monotonic()
    assert apart(path) == ""
    assert time.monotonic() - start < 15
    assert outbox_of(path).pending() == ["may"]


def alive(pid):
    path = Path(f"/proc/{pid}/stat")
    try:
        return path.read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@linux
def test_a_child_whose_parent_is_gone_ends_by_itself(monkeypatch):
    import resource

    said = {}
    monkeypatch.setattr(resource, "setrlimit", lambda kind, both: said.update({kind: both}))
    monkeypatch.setattr(module.signal, "alarm", lambda n: said.update(alarm=n))
    settings = SiteSettings("trial", "site-1", folder=".", seconds=2.5, memory_mib=300)
    module.limit_resources(settings)
    assert said["alarm"] == 8
    assert said[resource.RLIMIT_CORE] == (0, 0)
    used = psutil.Process().memory_info().data
    assert said[resource.RLIMIT_DATA][0] == pytest.approx(used + 300 * 2**20, abs=2**22)


def test_damaged_uploads_are_made_again_and_do_not_hold_up_others(tmp_path):
    path = site_folder(tmp_path / "site")
    for name in ("june", "july"):
        np.savez(path.parent / f"{name}.npz", **np.load(path.parent / "may.npz"))
        assert work(path, replace(OFFER, task=name)).text == ""
    for envelope in outbox_of(path).folder.glob("*.envelope"):
        envelope.write_bytes(envelope.read_bytes()[:-9])
    (path.parent / "june.npz").unlink()
    assert work(path, OFFER) == ("task june: june.npz: no rows for task june yet", False)
    assert outbox_of(path).pending() == ["july", "may"]


def test_text_of_foreign_exceptions_does_not_go_to_the_server(tmp_path, caplog):
    inside = text_for_server(Refused(f"{tmp_path}/site.toml", "a table", "\x1b"), tmp_path)
    assert inside == "site.toml: expected a table, got \\x1b"
    told = text_for_server(RuntimeError("patient 4711"), tmp_path)
    assert told.startswith("RuntimeError at the site")
    assert "patient 4711" in caplog.text
    assert text_for_server(ValueError("/etc/site.toml"), None).startswith("ValueError at the site")
    path = site_folder(tmp_path / "site")
    (path.parent / "site.key").chmod(0o644)
    assert work(path, OFFER).text.startswith("task may: PermissionError at the site")
    (path.parent / "site.key").chmod(0o600)
    path.write_text(path.read_text().replace('"."', '"nowhere"'))
    assert work(path, OFFER).text.startswith("task may: nowhere: no such folder")


def test_a_backbone_is_loaded_from_the_sites_folder_or_by_name(tmp_path, monkeypatch):
    from fedran.backbones import catalogue

    seen = []
    monkeypatch.setattr(catalogue, "load_backbone", seen.append)
    (tmp_path / "model").mkdir()
    for spec in ("efficientnet-lite0", "hf:google/vit", "vit:model", f"onnx:{os.devnull}"):
        backbone_loader(spec, tmp_path)()
    expected = [f"vit:{tmp_path / 'model'}", f"onnx:{os.devnull}"]
    assert seen == ["efficientnet-lite0", "hf:google/vit", *expected]
