"""What a site refuses, and that it answers each stage of an attempt once."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedran.core.errors import Refused
from fedran.federation.secure.masking import masking, unmasking
from fedran.federation.secure.masking.attempt import (
    STAGES,
    Answer,
    Request,
    SiteIdentity,
    Stage,
    pack_groups,
    unpack_groups,
)
from fedran.federation.secure.masking.ciphers import (
    pack_keys,
    pair_mask_key,
    participants_digest,
    private_key,
    self_mask_key,
)
from fedran.federation.secure.masking.masking import SiteState
from helpers.federation.secure_sums import KEYS, made_attempt, made_cohort


def signed_by(cohort, client: str, key, attempt=None, keys=None) -> bytes:
    """An advertisement of a client, made with another key, for another attempt or of other keys."""
    parts = keys or {name: bytes([7]) * 32 for name in ("channel", "mask", "seed")}
    attempt = attempt or cohort.server.attempt
    return pack_keys(parts) + Answer.sign(attempt, Stage.ADVERTISE, client, parts, key).signature


def test_a_masked_vector_is_the_vector_plus_its_masks():
    cohort = made_cohort(4, 16).run(until=Stage.MASK)
    state = cohort.states["s01"]  # its private keys are deleted by the next stage
    digest = participants_digest(state.participants)
    expected = [int(x) for x in cohort.vectors["s01"]]
    seed = state.secrets["seed"]
    masks = [(1, self_mask_key(state.attempt, "s01", seed))]
    for peer in ("s00", "s02", "s03"):
        other = cohort.states[peer].secrets["mask"]  # the peer's side of the agreement
        own = state.participants["s01"]["mask"]
        key = pair_mask_key(state.attempt, digest, private_key(other), own, ("s01", peer))
        masks.append((1 if peer > "s01" else -1, key))
    for sign, key in masks:
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(64))
        numbers = np.frombuffer(stream, "<u4").tolist()
        expected = [(x + sign * m) % 2**32 for x, m in zip(expected, numbers, strict=True)]
    blob = cohort.ask("s01")
    attempt, roster = state.attempt, cohort.server.roster
    answer = Answer.read(blob, attempt, Stage.MASK, "s01", roster)
    assert np.frombuffer(answer.parts["vector"], "<u4").tolist() == expected


@pytest.mark.parametrize("stage", STAGES)
def test_a_repeated_request_gets_the_same_bytes_also_after_a_restart(stage):
    cohort = made_cohort(4).run(until=stage)
    first = cohort.ask("s02")
    state = cohort.states["s02"]
    cohort.vectors["s02"] = cohort.vectors["s02"] + np.uint32(1)
    cohort.states["s02"] = SiteState.from_bytes(state.to_bytes())
    assert cohort.states["s02"] == state
    assert cohort.ask("s02") == first
    assert cohort.states["s02"] == state


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_second_different_request_in_one_stage_is_refused(stage):
    cohort = made_cohort(5).run(until=stage)
    change = None
    if stage is Stage.REVEAL:  # the server sends as few confirmations as possible; this is one more
        change = cohort.server.answers[Stage.CONFIRM]["s04"].signature
    first = cohort.altered("s00", s04=change)
    cohort.answer("s00", first)
    state = cohort.states["s00"]
    with pytest.raises(Refused, match=f"request of stage {stage}: expected the one that this site"):
        cohort.ask("s00")
    assert cohort.states["s00"] is state
    assert cohort.answer("s00", first) == state.answers[stage]


@pytest.mark.parametrize(("stage", "asked"), list(itertools.permutations(STAGES[1:], 2)))
def test_a_site_answers_only_the_next_stage(stage, asked):
    cohort = made_cohort(4).run(until=stage)
    other = replace(Request.read(unmasking.request(cohort.server, "s00")), stage=asked)
    answered = STAGES.index(asked) < STAGES.index(stage)
    word = f"request of stage {asked}" if answered else f"expected {stage}, which this site answers"
    with pytest.raises(Refused, match=word):
        cohort.answer("s00", other.to_bytes())


def test_an_attempt_begins_with_the_first_stage():
    cohort = made_cohort(4).run(until=Stage.CONFIRM)
    request = unmasking.request(cohort.server, "s00")
    with pytest.raises(Refused, match="stage: expected advertise, got confirm"):
        masking.advertise(request, cohort.identities["s00"])


def test_private_keys_are_deleted_with_the_masked_vector_and_shares_with_their_reveal():
    cohort = made_cohort(4).run(until=Stage.MASK)
    assert set(cohort.states["s00"].secrets) == {"channel", "mask", "seed"}
    secrets = {c: dict(s.secrets) for c, s in cohort.states.items()}
    cohort.run(until=Stage.REVEAL)
    assert cohort.states["s00"].secrets == {}
    held = [s for pair in cohort.states["s00"].held.values() for s in pair]
    saved = cohort.states["s00"].to_bytes()
    assert all(share in saved for share in held)
    assert not any(secret in saved for secret in secrets["s00"].values())
    sent = cohort.run().states["s00"].answers[Stage.REVEAL]
    saved = cohort.states["s00"].to_bytes()
    assert [share in saved for share in held] == [share in sent for share in held]
    assert sum(share in saved for share in held) == 4


def test_states_do_not_print_their_secrets():
    state = made_cohort(4).run(until=Stage.MASK).states["s00"]
    for secret in (*state.secrets.values(), *state.held["s00"]):
        assert secret.hex() not in repr(state)
        assert repr(secret)[2:-1] not in repr(state)


class TestRoster:
    def test_a_peer_that_is_not_in_the_pinned_roster_is_refused(self):
        cohort = made_cohort(4).run(until=Stage.SHARE)
        request = cohort.altered("s00", stranger=signed_by(cohort, "stranger", KEYS[50]))
        with pytest.raises(Refused, match=r"participants: expected only s00, .*, got stranger"):
            cohort.answer("s00", request)

    def test_another_roster_than_the_pinned_one_is_refused(self):
        cohort = made_cohort(4)
        roster = {**cohort.server.roster, "s03": KEYS[50].public}
        server = unmasking.start(made_attempt(roster), roster)
        with pytest.raises(Refused, match="roster of the attempt: expected the pinned roster"):
            masking.advertise(unmasking.request(server, "s00"), cohort.identities["s00"])

    def test_a_roster_that_was_pinned_during_the_attempt_ends_it(self):
        for stage in (Stage.SHARE, Stage.REVEAL):
            cohort = made_cohort(4).run(until=stage)
            me = cohort.identities["s00"]
            roster = {**me.roster, "new": KEYS[50].public}
            cohort.identities["s00"] = replace(me, roster=roster)
            with pytest.raises(Refused, match="roster of the attempt"):
                cohort.ask("s00")

    def test_an_identity_must_be_in_its_own_roster(self):
        with pytest.raises(ValueError, match="another key for s00"):
            SiteIdentity("s00", KEYS[0], {"s00": KEYS[1].public})
        with pytest.raises(ValueError, match="or none"):
            SiteIdentity("s00", KEYS[0], {})

    def test_a_state_of_another_site_is_an_error(self):
        cohort = made_cohort(4).run(until=Stage.SHARE)
        request = unmasking.request(cohort.server, "s00")
        with pytest.raises(ValueError, match="belongs to s00, not to s01"):
            masking.answer(cohort.states["s00"], request, cohort.identities["s01"])


class TestSignatures:
    def test_a_key_that_the_server_put_in_place_of_a_peers_is_refused(self):
        """A server in the middle would read the shares that this site sends to the peer."""
        cohort = made_cohort(4).run(until=Stage.SHARE)
        honest = Request.read(unmasking.request(cohort.server, "s00")).parts["s01"]
        for forged in (
            bytes([9]) * 32 + honest[32:],  # the channel key
            honest[:32] + bytes([9]) * 32 + honest[64:],  # the mask key
            honest[:64] + bytes([9]) * 32 + honest[96:],  # the commitment
            signed_by(cohort, "s01", KEYS[50]),  # all, with the server's own signature
            honest[:-1],
            honest + b"x",
            b"",
        ):
            with pytest.raises(Refused, match="signature of s01: expected one by its key"):
                cohort.answer("s00", cohort.altered("s00", s01=forged))

    def test_a_peers_advertisement_under_another_name_is_refused(self):
        cohort = made_cohort(4).run(until=Stage.SHARE)
        parts = Request.read(unmasking.request(cohort.server, "s00")).parts
        with pytest.raises(Refused, match="signature of s02"):
            cohort.answer("s00", cohort.altered("s00", s02=parts["s01"]))

    def test_a_peer_that_copies_the_keys_of_another_is_refused(self):
        cohort = made_cohort(4).run(until=Stage.SHARE)
        keys = cohort.server.answers[Stage.ADVERTISE]["s00"].parts
        copy = signed_by(cohort, "s01", KEYS[1], keys=keys)
        with pytest.raises(Refused, match="keys of s01: expected fresh keys, got a key of s00"):
            cohort.answer("s02", cohort.altered("s02", s01=copy))

    def test_a_peer_with_an_unsafe_key_is_refused(self):
        cohort = made_cohort(4).run(until=Stage.SHARE)
        keys = {"channel": bytes(32), "mask": bytes([7]) * 32, "seed": bytes([8]) * 32}
        unsafe = signed_by(cohort, "s01", KEYS[1], keys=keys)
        with pytest.raises(Refused, match="which is unsafe"):
            cohort.answer("s02", cohort.altered("s02", s01=unsafe))

    def test_another_key_under_the_sites_own_name_is_refused(self):
        """Two processes have one identity, or a site has lost its state."""
        cohort = made_cohort(4).run(until=Stage.SHARE)
        cohort.states["s00"], _ = masking.advertise(
            unmasking.request(made_cohort(4).server, "s00"), cohort.identities["s00"]
        )
        with pytest.raises(Refused, match="advertisement of s00: expected the one that this site"):
            cohort.ask("s00")


class TestLists:
    def test_too_few_participants_are_refused(self):
        cohort = made_cohort(5, min_sites=4).run(until=Stage.SHARE)
        with pytest.raises(Refused, match="participants: expected 4 to 128 sites, got 3"):
            cohort.answer("s00", cohort.altered("s00", s03=None, s04=None))

    def test_a_smaller_minimum_than_the_sites_own_is_refused(self):
        cohort = made_cohort(5, min_sites=3)
        request = unmasking.request(cohort.server, "s00")
        expected = (
            "min_sites of the attempt: expected at least 4, as configured at this site, got 3"
        )
        with pytest.raises(Refused, match=expected):
            masking.advertise(request, cohort.identities["s00"], min_sites=4)

    def test_fewer_sharers_than_the_threshold_are_refused(self):
        cohort = made_cohort(7).run(until=Stage.MASK)
        request = cohort.altered("s00", s04=None, s05=None, s06=None)
        with pytest.raises(Refused, match="sites that sent shares: expected 5 to 128 sites, got 4"):
            cohort.answer("s00", request)
        assert set(cohort.states["s00"].secrets) == {"channel", "mask", "seed"}

    def test_fewer_survivors_than_the_threshold_are_refused(self):
        cohort = made_cohort(7).run(until=Stage.CONFIRM)
        request = cohort.altered("s00", s04=None, s05=None, s06=None)
        with pytest.raises(Refused, match="survivors: expected 5 to 128 sites, got 4"):
            cohort.answer("s00", request)

    def test_a_list_of_survivors_without_this_site_is_refused(self):
        cohort = made_cohort(5).run(until=Stage.CONFIRM)
        with pytest.raises(Refused, match="survivors: expected a list with s00, this site"):
            cohort.answer("s00", cohort.altered("s00", s00=None))

    @pytest.mark.parametrize("name", ["s04", "s05"])
    def test_a_survivor_that_sent_no_shares_is_refused(self, name):
        drops = {Stage.ADVERTISE: ["s05"], Stage.SHARE: ["s04"]}
        cohort = made_cohort(6).run(drops, until=Stage.CONFIRM)
        with pytest.raises(Refused, match=f"survivors: expected only .*, got {name}"):
            cohort.answer("s00", cohort.altered("s00", **{name: b""}))

    def test_an_envelope_of_a_site_that_is_no_participant_is_refused(self):
        cohort = made_cohort(6).run({Stage.ADVERTISE: ["s05"]}, until=Stage.MASK)
        with pytest.raises(Refused, match=r"sites that sent shares: expected only .*, got s05"):
            cohort.answer("s00", cohort.altered("s00", s05=bytes(94)))

    def test_an_envelope_in_the_sites_own_name_is_refused(self):
        cohort = made_cohort(4).run(until=Stage.MASK)
        with pytest.raises(Refused, match="envelopes: expected those of the other sites"):
            cohort.answer("s00", cohort.altered("s00", s00=bytes(94)))

    def test_fewer_confirmations_than_the_threshold_are_refused(self):
        cohort = made_cohort(5).run(until=Stage.REVEAL)
        with pytest.raises(Refused, match="confirmations: expected 4 to 128 sites, got 3"):
            cohort.answer("s00", cohort.altered("s00", s01=None))
        assert cohort.states["s00"].held

    def test_a_confirmation_of_a_site_that_dropped_out_is_refused(self):
        cohort = made_cohort(7).run({Stage.MASK: ["s06"]}, until=Stage.REVEAL)
        with pytest.raises(Refused, match=r"confirmations: expected only .*, got s06"):
            cohort.answer("s00", cohort.altered("s00", s06=bytes(64)))


def test_a_vector_of_another_shape_or_type_is_an_error():
    cohort = made_cohort(4, 8).run(until=Stage.MASK)
    for vector in (np.zeros(7, np.uint32), np.zeros(8, np.int64), np.zeros((8, 1), np.uint32)):
        cohort.vectors["s00"] = vector
        with pytest.raises(ValueError, match=r"vector must be uint32 \(8,\), got"):
            cohort.ask("s00")


def test_masking_leaves_the_callers_vector_as_it_was():
    cohort = made_cohort(4)
    before = {c: v.copy() for c, v in cohort.vectors.items()}
    cohort.run()
    for client, vector in cohort.vectors.items():
        np.testing.assert_array_equal(vector, before[client])


def test_a_damaged_state_file_is_refused():
    blob = made_cohort(4).run(until=Stage.CONFIRM).states["s00"].to_bytes()
    for place in range(0, len(blob), 97):
        with pytest.raises(Refused):
            SiteState.from_bytes(blob[:place] + bytes([blob[place] ^ 4]) + blob[place + 1 :])
    with pytest.raises(Refused):
        SiteState.from_bytes(blob[:-1])


@pytest.mark.parametrize(
    "change", [{"request": {}}, {"request": {"x": b""}}, {"answer": {"x": b""}}, {}]
)
def test_a_state_file_of_another_version_is_refused(change):
    state = made_cohort(4).run(until=Stage.CONFIRM).states["s00"]
    _, groups = unpack_groups("secure site", state.to_bytes())
    groups = {**groups, **change} if change else {"data": {"": b"as another version wrote it"}}
    with pytest.raises(Refused, match="state: expected the state of a site in a secure sum"):
        SiteState.from_bytes(pack_groups("secure site", {"client": "s00"}, groups))
