"""What the server refuses and remembers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedran.core.errors import Refused
from fedran.federation.secure.masking import unmasking
from fedran.federation.secure.masking.attempt import (
    STAGES,
    Answer,
    AttemptFailed,
    Stage,
    pack_groups,
    unpack_groups,
)
from fedran.federation.secure.masking.unmasking import ServerState
from helpers.federation.secure_sums import KEYS, made_attempt, made_cohort


def answer_with(cohort, client: str, **changes: bytes | None) -> bytes:
    """An answer to the open stage with other parts, correctly signed by its site."""
    attempt, stage = cohort.server.attempt, cohort.server.stage
    found = Answer.read(cohort.ask(client), attempt, stage, client, cohort.server.roster)
    parts = {k: v for k, v in {**found.parts, **changes}.items() if v is not None}
    return Answer.sign(attempt, stage, client, parts, cohort.identities[client].key).to_bytes()


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_answer_again_changes_nothing_and_another_one_is_refused(stage):
    cohort = made_cohort(4).run(until=stage)
    answer = cohort.ask("s01")
    once = unmasking.collect(cohort.server, "s01", answer)
    assert unmasking.collect(once, "s01", answer) is once
    parts = Answer.read(answer, once.attempt, stage, "s01", once.roster).parts
    parts["more"] = b""
    other = Answer.sign(once.attempt, stage, "s01", parts, cohort.identities["s01"].key).to_bytes()
    with pytest.raises(Refused, match=f"answer of s01 to stage {stage}: expected the one it gave"):
        unmasking.collect(once, "s01", other)


def test_an_answer_that_comes_again_in_a_later_stage_changes_nothing():
    cohort = made_cohort(4).run(until=Stage.CONFIRM)
    answer = cohort.states["s01"].answers[Stage.MASK]
    assert unmasking.collect(cohort.server, "s01", answer) is cohort.server


@pytest.mark.parametrize("stage", STAGES)
def test_an_answer_with_a_wrong_signature_is_refused(stage):
    cohort = made_cohort(4).run(until=stage)
    attempt, server = cohort.server.attempt, cohort.server
    parts = Answer.read(cohort.ask("s01"), attempt, stage, "s01", server.roster).parts
    forged = Answer.sign(attempt, stage, "s01", parts, KEYS[50]).to_bytes()
    with pytest.raises(Refused, match="signature of s01: expected one by its key in the roster"):
        unmasking.collect(server, "s01", forged)
    with pytest.raises(Refused, match="client of the answer: expected s02, got s01"):
        unmasking.collect(server, "s02", cohort.ask("s01"))
    relabelled = Answer(
        "s02", stage, parts, Answer.sign(attempt, stage, "s01", parts, KEYS[1]).signature
    )
    with pytest.raises(Refused, match="signature of s02"):
        unmasking.collect(server, "s02", relabelled.to_bytes())


@pytest.mark.parametrize("stage", STAGES)
def test_an_answer_of_another_attempt_is_refused(stage):
    old = made_cohort(4).run(until=stage)
    answer = old.ask("s01")
    new = made_cohort(4, number=2).run(until=stage)
    with pytest.raises(Refused, match="signature of s01"):
        unmasking.collect(new.server, "s01", answer)


def test_an_unknown_site_is_refused():
    cohort = made_cohort(4)
    with pytest.raises(Refused, match="client: expected a site of the roster, got stranger"):
        unmasking.collect(cohort.server, "stranger", cohort.ask("s00"))
    with pytest.raises(Refused, match="client: expected a site of the roster, got stranger"):
        unmasking.request(cohort.server, "stranger")


@pytest.mark.parametrize("missed", STAGES[:-1])
def test_a_late_site_is_refused(missed):
    cohort = made_cohort(5).run(until=missed)
    late = cohort.ask("s04")
    cohort.run({missed: ["s04"]}, until=missed.next)
    for refused in (
        lambda: unmasking.collect(cohort.server, "s04", late),
        lambda: unmasking.request(cohort.server, "s04"),
    ):
        with pytest.raises(
            Refused,
            match=f"client: expected one that answered the stage before {missed.next}, got s04; "
            "it is too late for this attempt",
        ):
            refused()
    cohort.run()
    np.testing.assert_array_equal(unmasking.unmask(cohort.server), cohort.plain_sum())


def test_an_attempt_that_has_ended_takes_no_answers():
    cohort = made_cohort(3).run()
    with pytest.raises(Refused, match="stage: expected an open stage"):
        unmasking.collect(cohort.server, "s00", b"late")
    with pytest.raises(ValueError, match="the last stage is closed"):
        unmasking.close(cohort.server)
    assert cohort.server.asked == cohort.server.waiting_for == ()


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_with_too_few_answers_ends_the_attempt_with_one_sentence(stage):
    cohort = made_cohort(6).run(until=stage)
    needed = 3 if stage is Stage.ADVERTISE else 5
    for client in cohort.server.asked[: needed - 1]:
        cohort.server = unmasking.collect(cohort.server, client, cohort.ask(client))
    assert cohort.server.needed == needed
    with pytest.raises(AttemptFailed) as reason:
        unmasking.close(cohort.server)
    assert str(reason.value) == (
        f"attempt 1 of may: {needed - 1} sites answered stage {stage}, {needed} are needed; "
        "start another attempt"
    )
    client = cohort.server.waiting_for[0]
    cohort.server = unmasking.collect(cohort.server, client, cohort.ask(client))
    unmasking.close(cohort.server)


def test_the_minimum_of_an_attempt_counts_also_above_the_threshold():
    cohort = made_cohort(6, min_sites=6).run(until=Stage.MASK)
    cohort.exchange(["s05"])
    with pytest.raises(AttemptFailed, match="5 sites answered stage mask, 6 are needed"):
        unmasking.close(cohort.server)


@pytest.mark.parametrize(
    ("stage", "changes", "message"),
    [
        (Stage.ADVERTISE, {"seed": None}, "parts of the answer"),
        (
            Stage.ADVERTISE,
            {"mask": bytes(31)},
            "part mask of the answer: expected 32 bytes",
        ),
        (Stage.ADVERTISE, {"mask": bytes(32)}, "which is unsafe"),
        (Stage.SHARE, {"s02": None}, "parts of the answer: expected one for each of s01, s02, s03"),
        (Stage.SHARE, {"s00": bytes(94)}, "parts of the answer"),
        (Stage.SHARE, {"s02": bytes(95)}, "part s02 of the answer: expected 94 bytes, got 95"),
        (Stage.MASK, {"vector": bytes(28)}, "part vector of the answer: expected 32 bytes, got 28"),
        (Stage.MASK, {"other": b""}, "parts of the answer: expected one for each of vector"),
        (Stage.CONFIRM, {"survivors": b"[]"}, "survivors that s00 signed: expected the list"),
        (Stage.REVEAL, {"s02": None}, "parts of the answer"),
        (Stage.REVEAL, {"s02": bytes(34)}, "part s02 of the answer: expected 33 bytes, got 34"),
        (Stage.REVEAL, {"s02": b"\xff" * 33}, "share: expected 33 bytes below the prime"),
    ],
)
def test_a_signed_answer_of_another_form_is_refused_and_nothing_of_it_kept(stage, changes, message):
    cohort = made_cohort(4).run(until=stage)
    before = cohort.server.to_bytes()
    with pytest.raises(Refused, match=message):
        unmasking.collect(cohort.server, "s00", answer_with(cohort, "s00", **changes))
    assert cohort.server.to_bytes() == before
    np.testing.assert_array_equal(unmasking.unmask(cohort.run().server), cohort.plain_sum())


def test_a_site_that_advertises_the_keys_of_another_is_refused():
    cohort = made_cohort(4)
    cohort.server = unmasking.collect(cohort.server, "s00", cohort.ask("s00"))
    keys = cohort.server.answers[Stage.ADVERTISE]["s00"].parts
    with pytest.raises(Refused, match="keys of s01: expected fresh keys, got a key of s00"):
        unmasking.collect(cohort.server, "s01", answer_with(cohort, "s01", **keys))


def test_more_sites_than_one_sum_can_have_are_refused(monkeypatch):
    monkeypatch.setattr(unmasking, "MAX_SITES", 3)
    cohort = made_cohort(4)
    with pytest.raises(Refused, match="sites of one sum: expected at most 3, got 4"):
        cohort.exchange()
    cohort.run({Stage.ADVERTISE: ["s03"]})
    assert len(cohort.server.survivors) == 3


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("liar", ["s00", "s03", "s05"])
def test_wrong_shares_never_change_the_sum(dropped, liar):
    """With one share more than needed those of one site are left out, otherwise there is no sum."""
    drops = {Stage.MASK: ["s06"]} if dropped else {}
    cohort = made_cohort(7).run(drops, until=Stage.REVEAL)
    target = "s06" if dropped else "s02"
    for wrong in (bytes(33), b"\x01" + bytes(31) + b"\x05"):
        lied = replace(cohort, states=dict(cohort.states))
        answer = answer_with(lied, liar, **{target: wrong})
        lied.server = unmasking.collect(lied.server, liar, answer)
        lied.run()
        np.testing.assert_array_equal(unmasking.unmask(lied.server), lied.plain_sum())
        fewer = replace(cohort, states=dict(cohort.states))
        fewer.server = unmasking.collect(fewer.server, liar, answer)
        others = [c for c in fewer.server.waiting_for if c != liar]
        fewer.run({Stage.REVEAL: others[4:]})
        with pytest.raises(AttemptFailed, match=f"the shares of {target} do not give the secret"):
            unmasking.unmask(fewer.server)


def test_unmask_waits_for_the_last_stage():
    with pytest.raises(ValueError, match="stage reveal is open"):
        unmasking.unmask(made_cohort(4).run(until=Stage.REVEAL).server)


@pytest.mark.parametrize("stage", STAGES)
def test_a_server_that_was_killed_makes_the_same_requests(stage):
    cohort = made_cohort(5).run({Stage.MASK: ["s04"]}, until=stage)
    client = cohort.server.asked[0]
    cohort.server = unmasking.collect(cohort.server, client, cohort.ask(client))
    again = cohort.resumed()
    for name in again.server.asked:
        assert unmasking.request(again.server, name) == unmasking.request(cohort.server, name)
    assert again.server.to_bytes() == cohort.server.to_bytes()


def test_a_damaged_or_altered_server_state_is_refused():
    server = made_cohort(4).run(until=Stage.REVEAL).server
    blob = server.to_bytes()
    with pytest.raises(Refused):
        ServerState.from_bytes(blob[:-1])
    roster = {**server.roster, "s01": KEYS[50].public}
    with pytest.raises(Refused, match="signature of s01"):
        ServerState.from_bytes(replace(server, roster=roster).to_bytes())
    header, groups = unpack_groups("secure server", blob)
    fields = {name: header.get(name) for name in ("attempt", "roster", "stage", "digests")}
    for changed in ({"roster": None}, {"stage": "x"}, {"digests": []}, {"digests": {"share": 1}}):
        with pytest.raises(Refused):
            ServerState.from_bytes(pack_groups("secure server", {**fields, **changed}, groups))
    for missing in ({}, {"total": {}}, {"total": {"": b"123"}}, {**groups, "x": {"y": b""}}):
        with pytest.raises(Refused):
            ServerState.from_bytes(pack_groups("secure server", fields, missing))


def test_the_attempt_must_name_the_digest_of_the_roster():
    cohort = made_cohort(4)
    with pytest.raises(ValueError, match="roster_digest of this roster"):
        unmasking.start(made_attempt({}), cohort.server.roster)
