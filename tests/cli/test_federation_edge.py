"""An edge and its members from the command line, without a network."""

import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedran.federation.protocol.roster import Roster
from fedran.federation.server.settings import ServerPaths
from fedran.federation.server.store import Store
from fedran.federation.site.outbox import Outbox


def test_two_members_one_edge_as_the_guide_says(cli, tmp_path):
    hospital, edge = str(tmp_path / "hospital"), str(tmp_path / "edge")
    ask = ("--in-features", "6", "--out-features", "64")
    assert cli("federation", "init", hospital, "--sites", "0", *ask)[0] == 0
    ca = str(tmp_path / "hospital/server/tls/ca.crt")
    common = ("--federation", "hospital", "--server", "127.0.0.1:9444", "--ca", ca)
    for name in ("edge", "ward-a", "ward-b"):
        assert cli("federation", "join", str(tmp_path / name), "--client", name, *common)[0] == 0
    assert cli("federation", "add", hospital, str(tmp_path / "edge/enrolment.toml"))[0] == 0
    code, text, _ = cli("federation", "offer", hospital, "may")
    assert code == 0
    (tmp_path / "offer.json").write_text(text)
    for seed, name in enumerate(("ward-a", "ward-b")):
        y = np.arange(30) % 3
        y[-2:] = 9
        y = y.astype(str)
        y[:3] = ""
        rows = np.random.default_rng(seed).random((30, 6))
        np.savez(tmp_path / name / "data" / "may.npz", features=rows, labels=y)
        code, text, told = cli(
            "federation", "prepare", str(tmp_path / name), "may", "--offer",
            str(tmp_path / "offer.json"),
        )  # fmt: skip
        assert (code, told) == (0, "")
        assert "add" not in text
        assert "made now" in text
        assert "withheld, because of too few rows: '9' (2 rows)" in text
        assert re.search("3 of 30 rows have no label; [0-3] of them get a pseudo-label", text)
        assert 'pseudo_labels = "none" in site.toml leaves them out' in text
        assert re.search(r"KiB of uploads describe 720 B of rows \(float32\); a mixture", text)
        assert cli("federation", "add", edge, str(tmp_path / name / "enrolment.toml"))[0] == 0
        made = tmp_path / name / "state/outbox/may.envelope"
        offer = str(tmp_path / "offer.json")
        again = cli("federation", "prepare", str(tmp_path / name), "may", "--offer", offer)[1]
        assert "made earlier, used again" in again
        shutil.copy(made, tmp_path / "edge/inbox" / f"{name}.envelope")
    code, text, _ = cli("federation", "forward", edge, "may", "--budget", "20KB")
    assert code == 0
    assert "may.sum-1: the sum of ward-a, ward-b" in text

    server = ServerPaths.find(hospital)
    envelope = Outbox(tmp_path / "edge/state/outbox").envelope("may.sum-1")
    outcomes = []
    for name in (None, "ward-a", "ward-b"):
        if name is not None:
            enrolment = str(tmp_path / name / "enrolment.toml")
            assert cli("federation", "add", hospital, enrolment, "--edge", "edge")[0] == 0
        store = Store.open(server.folder, server.settings())
        outcomes.append(store.receive(envelope).outcome)
        store.close()
    assert outcomes == ["refused", "refused", "accepted"]
    assert list(Roster.load(server.roster).clients) == ["edge"]  # nobody waits for members


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"federation": 3}'])
def test_what_is_no_offer_is_refused(cli, tmp_path, text):
    hospital = str(tmp_path / "h")
    cli("federation", "init", hospital, "--sites", "1")
    (tmp_path / "offer.json").write_text(text)
    site = str(tmp_path / "h/sites/site-1")
    code, _, told = cli(
        "federation", "prepare", site, "task-1", "--offer", str(tmp_path / "offer.json")
    )
    assert code == 2
    assert "offer" in told
    assert told.count("\n") == 1


def test_the_command_line_works_without_the_extra():
    hidden = "import sys; sys.modules.update(flwr=None, cryptography=None)\n"
    code = hidden + "from fedran.cli.main import run; sys.exit(run(['plan', '--help']))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
    code = hidden + "from fedran.cli.main import run; sys.exit(run(['federation', 'up', 'x']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "install fedran's extra 'flower'" in done.stderr
