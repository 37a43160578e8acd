"""A dishonest server against real sites: every attack is refused, and reveals nothing.

`make test-faults` runs this test. The attacks are in ``helpers/federation/dishonest_server.py``.
"""

import json
import os
import re
import shutil
from collections import defaultdict
from contextlib import closing

import numpy as np
import pytest

pytest.importorskip("flwr")

import fedran
from fedran.federation.flower.programs import server_executor
from fedran.federation.protocol.messages import open_envelope
from fedran.federation.secure.masking.attempt import Stage, unpack_parts
from fedran.federation.secure.masking.contribution import sum_to_summary
from fedran.federation.secure.server.open_sum import make_content
from fedran.federation.secure.site.sum_files import SumFiles
from fedran.federation.server.store.store import Store
from helpers.federation import dishonest_server
from helpers.federation.dishonest_server import ATTACKS, SITES
from helpers.federation.real_federation import federation
from helpers.federation.secure_sums import shows

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(os.name != "posix", reason="the federation runs on Linux"),
]
FIRST, SECOND, THIRD, FOURTH = SITES
SIGNED = "expected one by its key in the roster, for stage {} of this attempt, got another"
OTHER_KEYS, OTHER_LIST = SIGNED.format("advertise"), SIGNED.format("confirm")
CLOSED = "expected an envelope that this site can open, got one that was altered"
ANSWERED = "request of stage confirm: expected the one that this site has answered"
FEW = [
    f"{what}: expected 3 to 128 sites, got 2"
    for what in ("participants", "sites that sent shares", "survivors", "confirmations")
]
REFUSED = {
    "wrong-signature": {
        s: [f"signature of {SECOND}: {OTHER_KEYS}"] for s in (FIRST, THIRD, FOURTH)
    },
    "replay": {
        **{s: ["number of the attempt: expected 2, got 1"] for s in (FIRST, SECOND)},
        **{s: [f"signature of {FIRST}: {OTHER_KEYS}"] for s in (THIRD, FOURTH)},
    },
    "equivocation": {
        FIRST: [f"shares of {SECOND}: {CLOSED}"],
        SECOND: [f"shares of {FIRST}: {CLOSED}"],
        THIRD: [f"shares of {FIRST}: {CLOSED}"],
    },
    "alive-and-dead": {
        FIRST: [f"signature of {SECOND}: {OTHER_LIST}", ANSWERED],
        SECOND: [f"signature of {FIRST}: {OTHER_LIST}", ANSWERED],
        THIRD: [f"signature of {FIRST}: {OTHER_LIST}"],
        FOURTH: [f"signature of {SECOND}: {OTHER_LIST}"],
    },
    "too-few": dict.fromkeys((FIRST, SECOND), FEW),
}
"""Task -> site -> the beginnings of what it refuses, in their order."""
SENT = {"alive-and-dead": SITES, "too-few": SITES, "equivocation": (FOURTH,)}
"""Task -> sites that the attack has brought to send a masked vector. They are in no later sum."""


def run_server(fed, attack, record, task):
    """One task with the program of the dishonest server in the place of ours."""
    record.mkdir(exist_ok=True)
    command, environment = server_executor(fed.server)
    command[2:5] = [dishonest_server.__file__]
    with fed.other_executor(command, {**environment, "ATTACK": attack, "RECORD": str(record)}):
        return fed.task(task)


def refused(record):
    """Task -> site -> what it refused, as the server was told."""
    found = defaultdict(lambda: defaultdict(list))
    for path in sorted(record.glob("*.received.fields")):
        fields = json.loads(path.read_bytes())
        for name, why in fields.get("refused", {}).items():
            found[name.rpartition(".")[0]][fields["client"]].append(why)
    return found


def masked_vectors(record):
    """(task, site) -> the vector that it sent."""
    found = {}
    for path in sorted(record.glob("*.received.*.[0-9]")):
        header, parts = unpack_parts("secure answer", path.read_bytes())
        if header.text("stage") == Stage.MASK:
            task = path.name.split(".")[2]
            found[task, header.text("client")] = np.frombuffer(parts["vector"], "<u4")
    return found


def server_view(fed, record):
    """Every byte that the server sent, received or stored."""
    paths = [p for folder in (record, fed.server.folder) for p in folder.rglob("*") if p.is_file()]
    return [path.read_bytes() for path in paths]


def files(fed, site):
    return SumFiles(fed.site(site).folder / "state")


@pytest.mark.filterwarnings("ignore:.*equals that of:UserWarning")  # all tasks have the same rows
def test_real_sites_refuse_every_attack_and_an_honest_server_then_gets_the_other_sums(tmp_path):
    settings = {"out_features": 32, "catch_up": 0}
    attacked, honest = tmp_path / "attacked", tmp_path / "honest"
    with federation(tmp_path / "t", len(SITES), privacy="secure", **settings) as fed:
        for site in SITES:
            data = fed.site(site).folder / "data"
            for task in ATTACKS:
                shutil.copy(data / "task-1.npz", data / f"{task}.npz")

        assert run_server(fed, "all", attacked, "attacks") == "unknown"
        told = refused(attacked)
        for task, sites in REFUSED.items():
            assert told[task].keys() == sites.keys(), task
            for site, sentences in sites.items():
                log = (fed.site(site).folder / "log" / "fedran.log").read_text()
                for reason, sentence in zip(told[task][site], sentences, strict=True):
                    assert reason.startswith(sentence), (task, site)
                    assert re.search(rf"secure sum {task}\.\d+: {re.escape(reason)}", log)
        states = {(t, s): files(fed, s).state(t) for t in ATTACKS for s in SITES}
        vectors = {
            (t, s): files(fed, s).vector(state.attempt)[0] for (t, s), state in states.items()
        }
        assert not any(Stage.REVEAL in state.answers for state in states.values())
        view = server_view(fed, attacked)
        assert not shows(view, vectors.values())
        assert all(shows([vector.tobytes()], [vector]) for vector in vectors.values())
        secrets = [s for state in states.values() for s in state.secrets.values()]
        secrets += [x for state in states.values() for pair in state.held.values() for x in pair]
        assert len(secrets) > 100
        assert not any(secret in blob for blob in view for secret in secrets)

        ended = {task: run_server(fed, "none", honest, task) for task in ATTACKS}
        assert ended["replay"] == ended["wrong-signature"] == "complete"
        before, after = masked_vectors(attacked), masked_vectors(honest)
        assert before.keys() == {(t, s) for t, sites in SENT.items() for s in sites}
        assert after.keys() == states.keys() - before.keys()
        told = refused(honest)
        assert {t: set(sites) for t, sites in told.items()} == {t: {*s} for t, s in SENT.items()}
        for sites in told.values():
            assert all("sent its rows" in reason for said in sites.values() for reason in said)
        assert not shows(server_view(fed, honest), vectors.values())
        check_sums(fed, vectors)
        assert all(fed.accuracy(site) > 0.9 for site in SITES)


def check_sums(fed, vectors):
    """The store holds a sum of the other sites, equal to that of plain vectors in every byte."""
    settings, tasks = fed.server.settings(), []
    with closing(Store.open(fed.server.folder, settings)) as store:
        for upload in store.database.uploads():
            tasks.append(upload.task)
            members = [site for site, _ in upload.members]
            assert members == [s for s in SITES if s not in SENT.get(tasks[-1], ())]
            plain = [vectors[tasks[-1], site] for site in members]
            content = make_content(store, tasks[-1])
            expected = sum_to_summary(
                np.sum(plain, axis=0, dtype=np.uint32),
                content,
                store.fingerprint,
                settings.out_features,
                len(members),
            )
            envelope = open_envelope(store.database.envelope(upload))
            assert envelope.upload == fedran.encode(expected, "float32")
    assert sorted(tasks) == sorted(t for t in ATTACKS if SENT.get(t) != SITES)
