"""Tasks over the folders of all sites, without Flower: real rounds, and every site as it is."""

import subprocess
import sys

import pytest

pytest.importorskip("cryptography")

from fedran.federation.ops import tasks
from fedran.federation.ops.scaffold import make_federation
from helpers.federation.real_federation import Federation


def test_every_site_of_a_folder_takes_part_in_a_simulation(tmp_path):
    fed = Federation(tmp_path / "many", sites=4)
    done = tasks.simulate(fed.folder, ["task-1", "task-2"], say=fed.said.append)
    assert done == ["complete", "complete"]
    names = [f"site-{i}" for i in range(1, 5)]
    accepted = [e["client"] for e in fed.events("upload", outcome="accepted", task="task-2")]
    assert sorted(accepted) == names
    for name in names:
        assert fed.outbox(name).receipt("task-1").settled
        assert fed.accuracy(name) > 0.9
    ends = "site-2, task-1: accepted", "no transport", "task-2: open, 0 uploads in"
    first, second, third = (next(n for n, x in enumerate(fed.said) if x.endswith(e)) for e in ends)
    assert first < second < third


def test_secure_sums_in_a_simulation(tmp_path, monkeypatch):
    monkeypatch.setattr("fedran.federation.secure.server.secure_round.POLL_SECONDS", 0.01)
    fed = Federation(tmp_path / "many", sites=4, privacy="secure")
    fed.set_server(out_features=256, sketch=64)
    (done,) = tasks.simulate(fed.folder, ["task-1"], say=fed.said.append)
    assert done == "complete", fed.logs()
    (event,) = fed.events("upload", outcome="accepted")
    assert (event["client"], event["members"]) == ("cohort-1", 4)
    assert all(fed.accuracy(f"site-{i}") > 0.9 for i in range(1, 5))


def test_sites_with_programs_of_their_own_do_not_disturb_each_other(tmp_path, monkeypatch):
    """Modules of the same name differ, and a program that ends its process ends no other."""
    monkeypatch.setattr("fedran.federation.server.round.messenger.RETRY_SECONDS", 0.01)
    fed = Federation(tmp_path / "many", sites=3)
    fed.set_server(deadline=2.0, min_clients=2)
    for n in (1, 2, 3):
        place = fed.site(f"site-{n}").folder
        program = f"return np.eye(64)[[{n}] * 9], [{n}] * 9" if n < 3 else "os._exit(3)"
        code = f"import os, numpy as np\n\ndef load(task):\n    {program}\n"
        (place / "rows.py").write_text(code)
        toml = (place / "site.toml").read_text().replace('folder = "data"', 'entry = "rows:load"')
        (place / "site.toml").write_text(toml)
    (done,) = tasks.simulate(fed.folder, ["task-1"], say=fed.said.append)
    assert done == "quorum"
    assert any("the process of site-3 was ended" in line for line in fed.said)
    assert fed.head("site-1").classes == fed.head("site-2").classes == (1, 2)


def test_a_simulation_needs_no_flower(tmp_path):
    make_federation(tmp_path / "f", n_sites=2, address="127.0.0.1:9443")
    code = (
        "import sys; sys.modules['flwr'] = None\n"
        "from fedran.cli.main import run\n"
        f"sys.exit(run(['federation', 'simulate', {str(tmp_path / 'f')!r}, 'task-1']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "task task-1: complete" in done.stdout


def test_a_simulation_without_sites_is_an_error(tmp_path):
    (tmp_path / "server.toml").write_text('federation = "trial"\nin_features = 6\n')
    with pytest.raises(FileNotFoundError, match="no sites; create them with `init`"):
        tasks.simulate(tmp_path, ["may"], say=print)
