"""Faults in production, each with its documented outcome: real processes on loopback.

`make test-faults` runs these tests. They take several minutes.
"""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("flwr")

from flwr.cli.build import build_fab_from_files

from fedran.federation.flower import control
from fedran.federation.flower.programs import APP_TEXT, _executable, is_listening
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.protocol.messages import seal
from fedran.federation.server.settings import APP, OWNER, ServerPaths
from fedran.federation.server.store.store import Store
from helpers.federation.made_federation import same_state
from helpers.federation.real_federation import federation, program, wait_for

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(os.name != "posix", reason="the federation runs on Linux"),
]


def online(fed):
    return sum(node.status == "online" for node in control.list_nodes(fed.server))


def test_a_site_that_stops_answering_is_waited_for_and_catches_up(tmp_path):
    with federation(tmp_path / "t", deadline=25, min_clients=1, catch_up=10) as fed:
        fed.kill("site-2", signal.SIGSTOP)
        closing = threading.Thread(target=close_when_open, args=(fed,))
        closing.start()
        assert fed.task("task-1", deadline=3600) == "quorum"
        closing.join()
        assert fed.events("task", task="task-1", state="quorum")[0]["missing"] == ["site-2"]
        assert fed.head("site-1").classes == (0, 1, 2, 3, 4)
        fed.set_server(min_clients=2)
        code, said = fed.command("task", fed.folder, "task-2")
        assert code == 1
        assert "short" in said
        assert fed.head("site-2") is None
        fed.kill("site-2", signal.SIGCONT)
        wait_for(lambda: len(fed.outcomes("site-2")) == 2, "late uploads of both tasks")
        assert sorted(fed.outcomes("site-2")) == [("task-1", "accepted"), ("task-2", "accepted")]
        wait_for(lambda: fed.head("site-2") is not None, "the newest head at the site")
        assert fed.head("site-2").classes == tuple(range(10))
        assert fed.accuracy("site-2") > 0.95


def test_a_killed_server_or_site_leaves_no_process_behind(tmp_path):
    with federation(tmp_path / "t", sites=1) as fed:
        left = []
        for place in (fed.server.folder, fed.site("site-1").folder):
            wait_for(lambda place=place: program(place, "executor"), "its executor")
            supervisor = psutil.Process(lock_holder(place / "log")["pid"])
            left += supervisor.children(recursive=True)
            supervisor.kill()
        assert len(left) >= 4
        assert not psutil.wait_procs(left, timeout=30)[1]


def close_when_open(fed):
    """As an operator who waits for the first upload and no longer."""
    wait_for(lambda: fed.events("upload", outcome="accepted"), "an upload")
    assert fed.command("close", fed.folder) == (0, "task task-1 ends now\n")


def test_a_server_killed_during_a_task_reaches_the_same_state_as_an_undisturbed_one(tmp_path):
    with federation(tmp_path / "t", sites=3) as fed:

        def kill_link():
            wait_for(lambda: fed.events("upload", task="task-1", outcome="accepted"), "an upload")
            fed.kill("server")

        def kill_app():
            wait_for(lambda: fed.events("upload", task="task-2", outcome="accepted"), "an upload")
            port = fed.server.settings().address.rpartition(":")[2]
            for process in psutil.process_iter(["cmdline"]):
                command = " ".join(process.info["cmdline"] or ())
                if "flower.executor server" in command and port in command:
                    process.kill()

        for task, kill in (("task-1", kill_link), ("task-2", kill_app)):
            killer = threading.Thread(target=kill)
            killer.start()
            assert fed.task(task) == "complete"
            killer.join()
        assert any("it is started again" in line for line in fed.said)
        accepted = fed.events("upload", outcome="accepted")
        assert len({(e["client"], e["task"]) for e in accepted}) == 6
        settings = fed.server.settings()
        restored = Store.open(fed.server.folder, settings)
        undisturbed = Store(tmp_path / "other", restored.settings, restored.roster)
        for record in map(restored.database.envelope, restored.database.uploads()):
            assert undisturbed.receive(record).outcome == "accepted"
        assert len(restored.database.uploads()) == 6
        assert same_state(restored, undisturbed)
        restored.close()
        undisturbed.close()
        assert all(fed.accuracy(f"site-{i}") > 0.95 for i in (1, 2, 3))


def test_sites_with_different_faults_each_get_the_right_answer(tmp_path):
    with federation(tmp_path / "t", sites=8, min_clients=2) as fed:
        assert fed.task("task-1") == "complete"
        fed.set_site("site-2", source="another backbone")
        plant_garbage(fed, "site-3")
        (fed.site("site-5").folder / "slow.py").write_text(
            "import time\ndef rows(task):\n    time.sleep(600)\n"
        )
        fed.set_site("site-5", entry="slow:rows", seconds=3)
        drop_setting(fed, "site-5", "folder")
        (fed.site("site-6").folder / "site.key").unlink()
        SiteKey.generate().save(fed.site("site-6").folder / "site.key")
        lose_outbox(fed, "site-7")
        (fed.site("site-8").folder / "mortal.py").write_text(MORTAL)
        fed.set_site("site-8", entry="mortal:rows")
        drop_setting(fed, "site-8", "folder")

        assert fed.task("task-2") == "complete"
        declined = {e["client"]: e["reason"] for e in fed.events("declined", task="task-2")}
        assert sorted(declined) == ["site-2", "site-5"]
        assert "another backbone" in declined["site-2"]
        assert "within 3 seconds" in declined["site-5"]
        answers = {(e["client"], e["task"]): e for e in fed.events("upload")}
        assert answers["site-1", "task-2"]["outcome"] == "accepted"
        assert answers["site-3", "task-2"]["code"] == "invalid"
        assert answers["site-4", "task-2"]["outcome"] == "accepted"
        assert answers["site-6", "task-2"]["code"] == "bad_signature"
        assert answers["site-7", "task-1"]["code"] == "conflict"
        assert answers["site-7", "task-2"]["outcome"] == "accepted"
        assert answers["site-8", "task-2"]["outcome"] == "accepted"
        assert "signal 9 ended" in (fed.site("site-8").folder / "log" / "fedran.log").read_text()

        code, said = fed.command("status", fed.folder)
        assert code == 0
        assert all(name in said for name in ("site-3", "site-6"))


def test_a_full_disk_accepts_no_upload_and_loses_none(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=448k", "tmpfs", str(disk)], capture_output=True
    ).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        single = {"group_size": 1, "min_group": 1, "landmarks": 100}
        with federation(tmp_path / "t", disk=disk, deadline=30, min_clients=1, **single) as fed:
            for name in ("site-1", "site-2"):
                fed.set_site(name, min_class_count=1)
                repeat_rows(fed, name, 40)
            assert fed.task("task-1") == "quorum"
            assert len(fed.events("upload", outcome="accepted")) == 1
            assert (
                "its answer is not kept" in (fed.server.folder / "log" / "fedran.log").read_text()
            )
            (kept,) = [n for n in ("site-1", "site-2") if fed.outbox(n).receipt("task-1") is None]
            assert fed.outbox(kept).pending() == ["task-1"]
            subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
            fed.set_server(landmarks=4096)
            assert fed.task("task-2") == "complete"
            assert fed.outbox(kept).receipt("task-1").outcome == "accepted"
            assert fed.accuracy(kept) > 0.95
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_sites_join_and_leave_and_the_superlink_restarts(tmp_path):
    with federation(tmp_path / "t", catch_up=10) as fed:
        assert fed.task("task-1") == "complete"
        address = fed.server.settings().address
        place = fed.site("site-3").folder
        code, said = fed.command(
            "join", place, "--federation", "trial", "--client", "site-3", "--server", address,
            "--ca", fed.server.tls / "ca.crt",
        )  # fmt: skip
        assert code == 0, said
        for task in ("task-1", "task-2"):
            shutil.copy(fed.site("site-1").folder / "data" / f"{task}.npz", place / "data")
        fed.start_site("site-3")  # its node is refused until its key is registered
        fed.kill("server")
        assert fed.command("add", fed.folder, place / "enrolment.toml")[0] == 0
        wait_for(lambda: is_listening(address), "the SuperLink to be back")
        wait_for(lambda: online(fed) == 3, "three nodes")
        assert fed.task("task-2") == "complete"
        assert sorted(fed.outcomes("site-3")) == [("task-1", "accepted"), ("task-2", "accepted")]
        assert fed.accuracy("site-3") > 0.95
        assert fed.command("remove", fed.folder, "site-3")[0] == 0
        wait_for(lambda: online(fed) == 2, "the removed node to be out")
        code, said = fed.command("status", fed.folder, "--json")
        assert code == 0, said


MORTAL = """\
import os, signal
from pathlib import Path
import numpy as np

def rows(task):
    if not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with np.load(f"data/{task}.npz") as file:
        return file["features"], file["labels"]
"""


def plant_garbage(fed, name):
    """A signed upload that is no message."""
    site, offer = fed.site(name), fed.server.settings().offer("task-2")
    key = SiteKey.load(site.folder / "site.key")
    hash_ = offer.features().fingerprint.hash
    said = {"federation": "trial", "client": name, "task": "task-2", "fingerprint": hash_}
    fed.outbox(name).put(seal(b"no message at all" * 100, key, **said))


def repeat_rows(fed, name, times):
    path = fed.site(name).folder / "data" / "task-1.npz"
    with np.load(path) as file:
        X, y = file["features"], file["labels"]
    np.savez(path, features=np.repeat(X, times, axis=0), labels=np.repeat(y, times))


def drop_setting(fed, name, setting):
    path = fed.site(name).settings_file
    lines = path.read_text().splitlines()
    path.write_text("\n".join(x for x in lines if not x.startswith(setting)) + "\n")


def lose_outbox(fed, name):
    """The site loses its outbox and gets other rows: another upload for the same task."""
    for path in fed.outbox(name).folder.glob("task-1.*"):
        path.unlink()
    path = fed.site(name).folder / "data" / "task-1.npz"
    with np.load(path) as file:
        X, y = file["features"], file["labels"]
    np.savez(path, features=X[::-1] + 0.01, labels=y[::-1])
    time.sleep(0.1)


EVIL = """\
from pathlib import Path
from flwr.app import Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

app = ServerApp()
site = ClientApp()

@app.main()
def main(grid, context):
    Path({marker!r}).touch()
    messages = [
        Message(RecordDict(), dst_node_id=node, message_type=MessageType.TRAIN)
        for node in grid.get_node_ids()
    ]
    list(grid.send_and_receive(messages, timeout=60))

@site.train()
def train(message, context):
    Path({marker!r} + "-at-site").touch()
    return Message(RecordDict(), reply_to=message)
"""


def submit_evil_app(fed, folder, marker, **changes):
    """Start a run with another app, as a thief of the owner's secret or as a stranger."""
    named = APP_TEXT
    for ours, evil in (("serverapp:app", "app"), ("clientapp:app", "site")):
        named = named.replace(f"fedran.federation.flower.{ours}", f"evil:{evil}")
    code = EVIL.format(marker=str(marker))
    app, _ = build_fab_from_files({"pyproject.toml": named.encode(), "evil.py": code.encode()})
    paths = ServerPaths(folder)
    paths.runtime.mkdir(parents=True, exist_ok=True)
    (paths.flower / APP).write_bytes(app)
    paths.tls.mkdir(exist_ok=True)
    (paths.tls / "ca.crt").write_bytes((fed.server.tls / "ca.crt").read_bytes())
    stolen = json.loads((fed.server.runtime / OWNER).read_bytes())
    (paths.runtime / OWNER).write_text(json.dumps({**stolen, **changes}))
    return control.start_run(paths)


def flowers_own_launcher(fed, home):
    """Flower's launcher in the place of ours, as an intruder at the server may start it."""
    command = [_executable("flower-superexec"), "--runtime-api-address"]
    command += [fed.server.settings().address, "--root-certificates"]
    command += [str(fed.server.tls / "ca.crt"), "--superexec-auth-secret-file"]
    command += [str(fed.server.runtime / "secret")]
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"
    return fed.other_executor(command, {**os.environ, "FLWR_HOME": str(home), "PATH": path})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a library with which Flower packs
def test_a_run_of_another_app_executes_no_code_and_raises_an_alarm(tmp_path):
    alarm = "ALARM: a run brought an app that is not"
    with federation(tmp_path / "t", sites=1, catch_up=10) as fed:
        marker, log = tmp_path / "code-was-run", fed.server.folder / "log" / "fedran.log"
        with pytest.raises(control.FlowerError, match="refused to start a run"):
            submit_evil_app(fed, tmp_path / "evil", marker, secret="guess")
        assert "ALARM: a request to the owner's interface" in log.read_text()
        assert "ALARM: the SuperLink refused" in fed.command("status", fed.folder)[1]
        submit_evil_app(fed, tmp_path / "evil", marker)
        wait_for(lambda: alarm in log.read_text(), "an alarm at the server")
        wait_for(lambda: "ALARM: a run" in fed.command("status", fed.folder)[1], "it in the status")
        assert not marker.exists()
        with flowers_own_launcher(fed, tmp_path / "home"):
            submit_evil_app(fed, tmp_path / "evil", marker)
            wait_for(marker.exists, "code at a server that an intruder controls")
            log = fed.site("site-1").folder / "log" / "fedran.log"
            wait_for(lambda: alarm in log.read_text(), "an alarm at the site")
        assert not marker.with_name("code-was-run-at-site").exists()
        assert fed.task("task-1") == "complete"
        assert fed.head("site-1") is not None
