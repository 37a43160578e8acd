"""The server's memory: exactly once, whatever is sent and whenever it is killed."""

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.core.errors import Refused
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.server import store as module
from helpers.made_federation import PHI, RULES, M, Sites, same_state, upload

HERE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def sites():
    return Sites("site-1", "site-2", "site-3", "edge")


@pytest.fixture
def keeper(sites, tmp_path):
    found = sites.keeper(tmp_path / "state")
    yield found
    found.close()


def outcomes(keeper, *blobs):
    return [keeper.receive(b).outcome for b in blobs]


def test_an_upload_counts_once(sites, keeper):
    blob = sites.envelope("site-1", "may")
    assert outcomes(keeper, blob, blob, blob) == ["accepted", "duplicate", "duplicate"]
    assert list(keeper.aggregator.ledger) == [("site-1", "may")]
    assert keeper.journal.count == 1


def test_the_head_is_that_of_the_summaries(sites, keeper):
    plain = fedran.Aggregator(M, fingerprint=PHI.fingerprint)
    for client, task in (("site-1", "may"), ("site-2", "may"), ("site-1", "june")):
        data = upload(len(client + task), classes=(0, 1) if task == "may" else (2, 3))
        assert keeper.receive(sites.envelope(client, task, data)).settled
        plain.absorb(fedran.decode(data), client=client, task=task)
    assert keeper.solve().classes == (0, 1, 2, 3)
    assert (keeper.solve().weights == plain.solve().weights).all()


REFUSED = [
    ("wrong key", {"key": "other"}, "signature: expected one by the key of site-1"),
    ("another federation", {"federation": "elsewhere"}, "federation: expected trial"),
    ("other features", {"fingerprint": "0" * 64}, "backbone or feature map differs"),
]


@pytest.mark.parametrize(("_", "changes", "words"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_is_refused_leaves_no_trace(_, changes, words, sites, keeper):
    keeper.receive(sites.envelope("site-2", "may"))
    before = keeper.journal.end
    if "key" in changes:
        changes = {"key": SiteKey.generate()}
    receipt = keeper.receive(sites.envelope("site-1", "may", **changes))
    assert (receipt.outcome, receipt.client) == ("refused", "site-1")
    assert words in receipt.reason
    assert not receipt.settled
    assert list(keeper.aggregator.ledger) == [("site-2", "may")]
    assert keeper.journal.end == before


def test_a_stranger_is_refused(sites, keeper):
    stranger = Sites("site-9")
    assert "a site of the roster" in keeper.receive(stranger.envelope("site-9", "may")).reason


def test_an_envelope_cannot_be_replayed_elsewhere(sites, keeper, tmp_path):
    """Into another task: the signature does not fit. Into another federation: neither."""
    from fedran.federation.protocol.envelope import open_envelope

    first = open_envelope(sites.envelope("site-1", "may"))
    moved = replace(first, statement=replace(first.statement, task="june")).to_bytes()
    assert "signature" in keeper.receive(moved).reason
    other = sites.keeper(tmp_path / "other", federation="second")
    assert "federation: expected second" in other.receive(first.to_bytes()).reason
    claimed = replace(first, statement=replace(first.statement, federation="second")).to_bytes()
    assert "signature" in other.receive(claimed).reason
    other.close()


def test_a_different_upload_for_a_known_key_is_refused(sites, keeper):
    keeper.receive(sites.envelope("site-1", "may", upload(1)))
    receipt = keeper.receive(sites.envelope("site-1", "may", upload(2)))
    assert receipt.outcome == "refused"
    assert "already accepted for site-1, may" in receipt.reason
    assert keeper.journal.count == 1


@pytest.mark.parametrize("blob", [b"", b"x" * 100, b"\x00" * 5000])
def test_garbage_is_refused(blob, keeper):
    assert keeper.receive(blob).outcome == "refused"


def test_a_damaged_summary_is_refused_though_it_is_signed(sites, keeper):
    data = bytearray(upload(1))
    data[-3] ^= 1
    receipt = keeper.receive(sites.envelope("site-1", "may", bytes(data)))
    assert receipt.outcome == "refused"
    assert keeper.journal.count == 0


def test_labels_that_nobody_announced_are_refused(sites, tmp_path):
    keeper = sites.keeper(tmp_path / "s", classes=(0, 1))
    assert keeper.receive(sites.envelope("site-1", "may", upload(1))).outcome == "accepted"
    strange = keeper.receive(sites.envelope("site-2", "may", upload(1, classes=(1, 7))))
    assert "labels of this federation, got [7]" in strange.reason
    keeper.close()


def test_an_unusual_energy_waits_for_a_person(sites, keeper, tmp_path):
    keeper.receive(sites.envelope("site-1", "may"))
    loud = sites.envelope("site-2", "may", upload(2, scale=20.0))
    receipt = keeper.receive(loud)
    assert receipt.outcome == "quarantined"
    assert receipt.settled
    assert "times the median" in receipt.reason
    assert keeper.receive(loud).outcome == "quarantined"
    other = keeper.receive(sites.envelope("site-2", "may", upload(3, scale=20.0)))
    assert (other.outcome, "in quarantine" in other.reason) == ("refused", True)
    assert keeper.journal.count == 1
    assert keeper.accept("site-2", "may").outcome == "accepted"
    assert keeper.receive(loud).outcome == "duplicate"
    with pytest.raises(Refused, match="one that is in quarantine"):
        keeper.accept("site-2", "may")
    again = sites.keeper(tmp_path / "state")
    assert same_state(again, keeper)
    again.close()


def test_a_forwarded_sum_lists_its_members_and_none_twice(sites, keeper):
    both = (("site-1", "may"), ("site-2", "may"))
    assert keeper.receive(sites.envelope("edge", "may.sum-1", members=both)).outcome == "accepted"
    direct = keeper.receive(sites.envelope("site-1", "may"))
    assert (direct.outcome, "through edge" in direct.reason) == ("refused", True)
    late = sites.envelope("edge", "may.sum-2", upload(9), members=(("site-3", "may"),))
    assert keeper.receive(late).outcome == "accepted"
    overlap = sites.envelope("edge", "may.sum-3", upload(8), members=(("site-3", "may"),))
    assert "through edge" in keeper.receive(overlap).reason
    keeper.receive(sites.envelope("site-1", "june"))
    overlap = sites.envelope("edge", "june.sum-1", upload(7), members=(("site-1", "june"),))
    assert "by itself" in keeper.receive(overlap).reason


@pytest.mark.parametrize("own", [(), (("site-1", "may"),)], ids=["alone", "beside its own"])
def test_nobody_takes_the_place_of_a_site_that_it_is_no_edge_of(own, sites, keeper):
    before = keeper.journal.end
    claim = sites.envelope("site-1", "may.sum-1", members=(*own, ("site-2", "may")))
    receipt = keeper.receive(claim)
    assert receipt.outcome == "refused"
    assert "members that the roster lists for site-1, got ['site-2']" in receipt.reason
    assert (keeper.journal.end, keeper.state.covered) == (before, {})
    assert keeper.receive(sites.envelope("site-2", "may")).outcome == "accepted"
    assert keeper.receive(sites.envelope("site-1", "may")).outcome == "accepted"


def test_an_edge_speaks_for_its_own_members_only(sites, tmp_path):
    listed = replace(sites.roster, edges={"edge": ("site-1",), "site-3": ("site-2",)})
    keeper = module.Keeper(tmp_path / "s", RULES, listed)
    both = (("site-1", "may"), ("site-2", "may"))
    refused = keeper.receive(sites.envelope("edge", "may.sum-1", members=both))
    assert "lists for edge, got ['site-2']" in refused.reason
    for sender, member in (("edge", "site-1"), ("site-3", "site-2")):
        blob = sites.envelope(sender, "may.sum-1", members=((member, "may"),))
        assert keeper.receive(blob).outcome == "accepted"
    keeper.close()


def test_a_sum_is_for_a_task_that_was_opened(sites, keeper):
    keeper.tasks = frozenset({"may"})
    june, may = ({"members": (("site-1", task),)} for task in ("june", "may"))
    assert "one that was opened" in keeper.receive(sites.envelope("edge", "june")).reason
    foreign = keeper.receive(sites.envelope("edge", "june.sum-1", **june))
    assert (foreign.outcome, "one that was opened" in foreign.reason) == ("refused", True)
    for task, members in (("may.sum-1", june), ("may", may), ("may.sum-x", may), ("may.sum-1", {})):
        assert keeper.receive(sites.envelope("edge", task, **members)).outcome == "refused"
    assert keeper.receive(sites.envelope("edge", "may.sum-1", **may)).outcome == "accepted"


def test_rows_that_are_all_zero_are_refused_and_stop_nobody(sites, keeper):
    assert (
        "all zero" in keeper.receive(sites.envelope("site-1", "may", upload(1, scale=0.0))).reason
    )
    keeper.energies.append(0.0)  # an old journal may hold one
    assert keeper.receive(sites.envelope("site-2", "may")).outcome == "accepted"


def test_what_no_check_foresaw_is_refused_and_logged(sites, keeper, monkeypatch, caplog):
    monkeypatch.setattr(keeper, "_unusual", lambda _: 1 / 0)
    receipt = keeper.receive(sites.envelope("site-1", "may"))
    assert (receipt.outcome, receipt.reason[:8]) == ("refused", "an error")
    assert "ZeroDivisionError" in caplog.text
    assert keeper.journal.count == 0


def test_a_restart_ends_in_the_same_state(sites, tmp_path):
    whole = sites.keeper(tmp_path / "whole")
    for n in range(8):
        blob = sites.envelope("site-1", f"task-{n}", upload(n, classes=(n, n + 1)))
        whole.receive(blob)
        broken = sites.keeper(tmp_path / "broken")
        broken.receive(blob)
        broken.close()
    again = sites.keeper(tmp_path / "broken")
    assert same_state(again, whole)
    assert len(list((tmp_path / "broken").glob("snapshot-*.fedran"))) == 2
    for keeper in (again, whole):
        keeper.close()


def test_a_full_disk_acknowledges_nothing(sites, keeper, tmp_path, monkeypatch):
    keeper.receive(sites.envelope("site-1", "may"))
    state = keeper.journal.end

    def full(record):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(keeper.journal, "append", full)
        with pytest.raises(OSError, match="No space left"):
            keeper.receive(sites.envelope("site-2", "may"))
    assert keeper.journal.end == state
    assert ("site-2", "may") not in keeper.aggregator.ledger
    assert keeper.receive(sites.envelope("site-2", "may")).outcome == "accepted"


def test_a_snapshot_that_could_not_be_written_loses_nothing(sites, tmp_path, monkeypatch):
    keeper = sites.keeper(tmp_path / "s", snapshot_every=1)
    keeper.receive(sites.envelope("site-1", "may"))

    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomically", full)
        receipt = keeper.receive(sites.envelope("site-2", "may"))
    assert receipt.outcome == "accepted"
    keeper.close()
    again = sites.keeper(tmp_path / "s")
    assert set(again.aggregator.ledger) == {("site-1", "may"), ("site-2", "may")}
    again.close()


def test_a_journal_that_is_older_than_its_snapshot_is_refused(sites, tmp_path):
    keeper = sites.keeper(tmp_path / "s", snapshot_every=1)
    keeper.receive(sites.envelope("site-1", "may"))
    keeper.close()
    (tmp_path / "s" / "journal").unlink()
    with pytest.raises(Refused, match="restore both from one backup"):
        sites.keeper(tmp_path / "s")


SERVER = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from helpers.made_federation import RULES
from fedran.federation.server.store import Keeper
from fedran.federation.protocol.roster import Roster
keeper = Keeper({state!r}, RULES, Roster.load({roster!r}))
for path in sorted(Path({inbox!r}).iterdir()):
    receipt = keeper.receive(path.read_bytes())
    print(path.name, receipt.outcome, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_killed_at_any_moment_a_restart_ends_as_if_undisturbed(sites, tmp_path):
    inbox, state = tmp_path / "inbox", tmp_path / "state"
    inbox.mkdir()
    for n in range(30):
        blob = sites.envelope("site-1", f"task-{n:02d}", upload(n, classes=(n % 5, 5)))
        (inbox / f"{n:02d}").write_bytes(blob)
    sites.roster.save(tmp_path / "roster.toml")
    program = SERVER.format(
        here=str(HERE), state=str(state), roster=str(tmp_path / "roster.toml"), inbox=str(inbox)
    )
    acknowledged, kills = set(), 0
    for attempt in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
        ) as server:
            line = server.stdout.readline()
            time.sleep(0.001 * (attempt % 7))
            server.send_signal(signal.SIGKILL)
            rest = server.stdout.read()
        said = [text.split() for text in (line + rest).splitlines() if len(text.split()) == 2]
        acknowledged |= {name for name, outcome in said if outcome in ("accepted", "duplicate")}
        kills += server.returncode == -signal.SIGKILL
    final = sites.keeper(state)
    kept = {task for _, task in final.aggregator.ledger}
    assert {f"task-{name}" for name in acknowledged} <= kept
    assert kills
    for path in sorted(inbox.iterdir()):
        assert final.receive(path.read_bytes()).settled
    whole = sites.keeper(tmp_path / "whole")
    for record in final.journal.records():
        whole.receive(record)
    assert same_state(final, whole)
    assert final.journal.count == 30
    for keeper in (final, whole):
        keeper.close()
