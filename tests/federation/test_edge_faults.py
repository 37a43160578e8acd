"""An edge with real processes: a member is forgotten while the edge is killed."""

import os
from contextlib import closing

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedran.federation.server.database import Database
from fedran.federation.server.store import Store
from helpers.made_federation import same_state
from helpers.real_federation import federation, wait_for

EDGE, WARDS = "site-2", ("ward-a", "ward-b")
pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(os.name != "posix", reason="the federation runs on Linux"),
]


def run(fed, *arguments):
    code, said = fed.command(*arguments)
    assert code == 0, said
    return said


def send_through_edge(fed, folder, ward, offer, rows):
    """Let a new member join, make its upload as a file, and bring it to the edge."""
    run(
        fed, "join", folder, "--federation", "trial", "--client", ward,
        "--server", fed.server.settings().address, "--ca", fed.server.tls / "ca.crt",
    )  # fmt: skip
    with np.load(fed.site(EDGE).folder / "data" / "task-1.npz") as file:
        X, y = file["features"][rows], file["labels"][rows]
    np.savez(folder / "data" / "task-1.npz", features=X, labels=y)
    run(fed, "prepare", folder, "task-1", "--offer", offer)
    run(fed, "add", fed.site(EDGE).folder, folder / "enrolment.toml")
    run(fed, "add", fed.folder, folder / "enrolment.toml", "--edge", EDGE)
    made = folder / "state" / "outbox" / "task-1.envelope"
    (fed.site(EDGE).folder / "inbox" / f"{ward}.envelope").write_bytes(made.read_bytes())
    return made.read_bytes()


def test_forgetting_a_member_asks_a_running_edge_for_a_revised_sum(tmp_path):
    with federation(tmp_path / "t", catch_up=10) as fed:
        offer = tmp_path / "offer.json"
        offer.write_text(run(fed, "offer", fed.folder, "task-1"))
        sent = {
            ward: send_through_edge(fed, tmp_path / ward, ward, offer, slice(n, None, 2))
            for n, ward in enumerate(WARDS)
        }
        (fed.site(EDGE).folder / "data" / "task-1.npz").unlink()  # they are its members' rows
        run(fed, "forward", fed.site(EDGE).folder, "task-1")
        assert fed.task("task-1").state == "complete"
        assert (EDGE, "task-1.sum-1", 0) in accepted(fed)
        first = (fed.server.state / "head.fedran").read_bytes()

        said = run(fed, "forget", fed.folder, "ward-a", "--task", "task-1", "--yes")
        assert "task-1.sum-1" in said
        assert EDGE not in {client for client, _, _ in accepted(fed)}
        fed.kill(EDGE)  # its supervisor starts it again
        wait_for(lambda: (EDGE, "task-1.sum-1", 1) in accepted(fed), "the revised sum")
        with closing(Database(fed.server.state, read_only=True)) as database:
            members = {upload.client: upload.members for upload in database.uploads()}
        assert members[EDGE] == (("ward-b", "task-1"),)
        wait_for(lambda: fed.head("site-1") is not None, "a head")
        for place in (fed.server.state, fed.site(EDGE).folder / "state"):
            content = b"".join(p.read_bytes() for p in place.rglob("*") if p.is_file())
            assert sent["ward-a"][-2000:] not in content
            assert (sent["ward-b"][-2000:] in content) == (place != fed.server.state)
        code, said = fed.command("forward", fed.site(EDGE).folder, "task-1")
        assert (code, "refused (ward-a, task-1)" in said) == (0, True), said
        wait_for(
            lambda: (fed.server.state / "head.fedran").read_bytes() != first, "a head without it"
        )
    restored = Store.open(fed.server.folder, fed.server.settings())
    without = Store(tmp_path / "other", restored.settings, restored.roster)
    for envelope in restored.database.envelopes():
        assert without.receive(envelope).outcome == "accepted"
    assert same_state(restored, without)
    restored.close()
    without.close()


def accepted(fed):
    """Client, task and revision of the uploads that the server has."""
    with closing(Database(fed.server.state, read_only=True)) as database:
        return {(upload.client, upload.task, upload.revision) for upload in database.uploads()}
