"""Attacks of a dishonest server, alone or with dishonest sites, and why each fails."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran.core.errors import Refused
from fedran.federation.secure.masking import unmasking
from fedran.federation.secure.masking.attempt import (
    STAGES,
    Answer,
    AttemptFailed,
    Request,
    Stage,
    threshold,
)
from fedran.federation.secure.masking.ciphers import combine, survivors_text
from helpers.federation.secure_sums import made_cohort


def confirm_list(cohort, client: str, survivors) -> bytes:
    """Show a list of survivors to a site; the signature that it returns."""
    parts = dict.fromkeys(survivors, b"")
    request = Request(cohort.server.attempt, Stage.CONFIRM, parts).to_bytes()
    blob = cohort.answer(client, request)
    attempt, roster = cohort.server.attempt, cohort.server.roster
    return Answer.read(blob, attempt, Stage.CONFIRM, client, roster).signature


def dishonest_signature(cohort, client: str, survivors) -> bytes:
    """What a site signs that helps the server: any list."""
    state = cohort.states[client]
    parts = {"survivors": survivors_text(state.participants, state.held, survivors)}
    key = cohort.identities[client].key
    return Answer.sign(state.attempt, Stage.CONFIRM, client, parts, key).signature


def reveal_with(cohort, client: str, signatures) -> dict[str, bytes]:
    """Ask a site to reveal, with these confirmations; the shares that it sends."""
    request = Request(cohort.server.attempt, Stage.REVEAL, signatures).to_bytes()
    blob = cohort.answer(client, request)
    attempt, roster = cohort.server.attempt, cohort.server.roster
    return Answer.read(blob, attempt, Stage.REVEAL, client, roster).parts


class TestOneSiteAliveAndDead:
    """With both secrets of a site the server could remove all of its masks."""

    def test_a_server_that_shows_two_lists_gets_no_shares_for_either(self):
        cohort = made_cohort(6).run(until=Stage.CONFIRM)
        everybody = [f"s0{i}" for i in range(6)]
        alive = {c: confirm_list(cohort, c, everybody) for c in everybody[:3]}
        dead = {c: confirm_list(cohort, c, everybody[:5]) for c in everybody[3:5]}
        for client, signatures in (("s00", alive), ("s03", dead)):
            with pytest.raises(Refused, match="confirmations: expected 5 to 128 sites, got"):
                reveal_with(cohort, client, signatures)
            with pytest.raises(Refused, match="the server has shown it another list of survivors"):
                reveal_with(cohort, client, {**alive, **dead})
            assert Stage.REVEAL not in cohort.states[client].answers

    def test_a_site_confirms_one_list_only_and_reveals_once_only(self):
        cohort = made_cohort(6).run(until=Stage.CONFIRM)
        everybody = [f"s0{i}" for i in range(6)]
        alive = {c: confirm_list(cohort, c, everybody) for c in everybody}
        for client in everybody[:5]:
            with pytest.raises(Refused, match="request of stage confirm: expected the one that"):
                confirm_list(cohort, client, everybody[:5])
        first = reveal_with(cohort, "s00", alive)
        fewer = {c: s for c, s in alive.items() if c != "s05"}
        with pytest.raises(Refused, match="request of stage reveal: expected the one that"):
            reveal_with(cohort, "s00", fewer)
        assert set(first) == set(everybody)

    @given(n=st.integers(4, 7), data=st.data())
    @settings(max_examples=15, deadline=None)
    def test_a_third_of_the_sites_cannot_help_the_server_to_both_secrets(self, n, data):
        """Honest sites are shown one of two lists; dishonest ones sign and reveal everything."""
        cohort = made_cohort(n).run(until=Stage.CONFIRM)
        everybody = [f"s0{i}" for i in range(n)]
        victim, others = everybody[0], everybody[1:]
        dishonest = others[len(others) - n // 3 :]
        honest = [c for c in others if c not in dishonest]
        shown_dead = data.draw(st.sets(st.sampled_from(honest)))
        lists = {True: tuple(everybody), False: tuple(others)}
        shares: dict[bool, dict[str, bytes]] = {True: {}, False: {}}
        for alive, survivors in lists.items():
            signatures = {c: dishonest_signature(cohort, c, survivors) for c in dishonest}
            asked = [c for c in [*honest, victim] if (c not in shown_dead) == alive]
            for client in asked:
                with suppress(Refused):  # a list without the site itself, or a short one
                    signatures[client] = confirm_list(cohort, client, survivors)
            for client in asked:
                with suppress(Refused):
                    shares[alive][client] = reveal_with(cohort, client, signatures)[victim]
            for client in dishonest:
                seed, key = cohort.states[client].held[victim]
                shares[alive][client] = seed if alive else key
        enough = [alive for alive in lists if len(shares[alive]) >= threshold(n)]
        assert len(enough) <= 1

    def test_more_dishonest_sites_than_promised_do_break_it(self):
        """The bound is tight: with 3 of 5 sites the server gets both secrets of a site."""
        cohort = made_cohort(5).run(until=Stage.CONFIRM)
        everybody = [f"s0{i}" for i in range(5)]
        dishonest, victim = everybody[2:], "s00"
        shares = []
        for honest, survivors, which in (("s00", everybody, 0), ("s01", everybody[1:], 1)):
            signatures = {c: dishonest_signature(cohort, c, survivors) for c in dishonest}
            signatures[honest] = confirm_list(cohort, honest, survivors)
            found = {honest: reveal_with(cohort, honest, signatures)[victim]}
            found |= {c: cohort.states[c].held[victim][which] for c in dishonest}
            shares.append({everybody.index(c) + 1: share for c, share in found.items()})
        assert all(len(found) == threshold(5) == 4 for found in shares)
        assert combine(shares[0]) != combine(shares[1])


class TestSmallCohorts:
    """A dishonest server chooses who takes part: one honest site and two that help it."""

    def test_the_minimum_bounds_how_few_sites_a_server_can_choose(self):
        cohort = made_cohort(9, min_sites=6)
        with pytest.raises(AttemptFailed, match="3 sites answered stage advertise, 6 are needed"):
            cohort.run({Stage.ADVERTISE: [f"s0{i}" for i in range(3, 9)]})
        forced = replace(cohort.server, stage=Stage.SHARE)  # the server goes on nevertheless
        with pytest.raises(Refused, match="participants: expected 6 to 128 sites, got 3"):
            cohort.answer("s00", unmasking.request(forced, "s00"))

    def test_more_helpers_than_a_third_of_the_minimum_do_isolate_a_site(self):
        """Documented: two helpers of a default federation subtract their own vectors."""
        cohort = made_cohort(9, min_sites=3).run({Stage.ADVERTISE: [f"s0{i}" for i in range(3, 9)]})
        rest = unmasking.unmask(cohort.server) - cohort.vectors["s01"] - cohort.vectors["s02"]
        np.testing.assert_array_equal(rest, cohort.vectors["s00"])


class TestDifferentViews:
    def test_other_participants_for_another_site_make_envelopes_that_do_not_open(self):
        cohort = made_cohort(6).run(until=Stage.SHARE)
        small = cohort.altered("s00", s05=None)
        cohort.server = unmasking.collect(
            cohort.server, "s01", cohort.answer("s01", unmasking.request(cohort.server, "s01"))
        )
        cohort.answer("s00", small)  # sees five sites, all others see six
        for client in ("s02", "s03", "s04", "s05"):
            cohort.server = unmasking.collect(cohort.server, client, cohort.ask(client))
        cohort.server = unmasking.close(cohort.server)
        envelopes = Answer.read(
            cohort.states["s00"].answers[Stage.SHARE],
            cohort.server.attempt,
            Stage.SHARE,
            "s00",
            cohort.server.roster,
        ).parts
        with pytest.raises(Refused, match=r"shares of s00: .* another list of sites"):
            cohort.answer("s01", cohort.altered("s01", s00=envelopes["s01"]))
        parts = {c: a.parts["s00"] for c, a in cohort.server.answers[Stage.SHARE].items()}
        parts.pop("s05")
        request = Request(cohort.server.attempt, Stage.MASK, parts).to_bytes()
        with pytest.raises(Refused, match=r"shares of s01: .* another list of sites"):
            cohort.answer("s00", request)

    def test_other_sharers_for_another_site_make_signatures_that_do_not_fit(self):
        """A site masks for six peers, the others for five: the confirmations show it."""
        cohort = made_cohort(6).run(until=Stage.MASK)
        for client in cohort.server.asked:
            request = cohort.altered(client, **({} if client == "s00" else {"s05": None}))
            if client != "s05":
                answer = cohort.answer(client, request)
                cohort.server = unmasking.collect(cohort.server, client, answer)
        survivors = [f"s0{i}" for i in range(5)]
        signatures = {c: confirm_list(cohort, c, survivors) for c in survivors}
        for client in survivors:
            with pytest.raises(Refused, match="signature of s0"):
                reveal_with(cohort, client, signatures)

    def test_an_envelope_for_another_site_does_not_open(self):
        cohort = made_cohort(4).run(until=Stage.MASK)
        theirs = cohort.server.answers[Stage.SHARE]["s01"].parts["s02"]
        with pytest.raises(Refused, match="shares of s01: expected an envelope that this site"):
            cohort.answer("s00", cohort.altered("s00", s01=theirs))

    @pytest.mark.parametrize("field", ["federation", "task", "fingerprint", "content", "min_sites"])
    def test_sites_that_were_promised_different_things_refuse_each_other(self, field):
        """For instance another meaning of the numbers: the sum would make no sense."""
        value = {"federation": "b", "task": "june", "min_sites": 4}.get(field, "e" * 64)
        here, there = made_cohort(5), made_cohort(5, **{field: value})
        here.run(until=Stage.SHARE)
        there.run(until=Stage.SHARE)
        foreign = Request.read(unmasking.request(there.server, "s00")).parts["s01"]
        with pytest.raises(Refused, match="signature of s01"):
            here.answer("s00", here.altered("s00", s01=foreign))
        with pytest.raises(Refused, match=f"{field} of the attempt: expected"):
            here.answer("s00", unmasking.request(there.server, "s00"))


class TestReplay:
    @pytest.mark.parametrize("stage", STAGES)
    def test_a_request_of_an_earlier_attempt_is_refused(self, stage):
        old = made_cohort(3).run(until=stage)
        request = unmasking.request(old.server, "s00")
        new = replace(old.another_attempt(), states={}).run(until=Stage.CONFIRM)
        with pytest.raises(Refused, match="number of the attempt: expected 2, got 1"):
            new.answer("s00", request)

    def test_an_advertisement_of_an_earlier_attempt_is_refused(self):
        old = made_cohort(4).run(until=Stage.SHARE)
        recorded = Request.read(unmasking.request(old.server, "s00")).parts["s01"]
        new = old.another_attempt().run(until=Stage.SHARE)
        with pytest.raises(Refused, match="signature of s01"):
            new.answer("s00", new.altered("s00", s01=recorded))

    def test_confirmations_of_an_earlier_attempt_are_refused(self):
        old = made_cohort(3).run(until=Stage.REVEAL)
        recorded = Request.read(unmasking.request(old.server, "s00")).parts
        new = replace(old.another_attempt(), states={}).run(until=Stage.REVEAL)
        with pytest.raises(Refused, match="signature of s0"):
            new.answer("s00", replace_parts(new, "s00", recorded))

    def test_a_server_that_was_reset_cannot_use_a_number_again(self):
        old = made_cohort(4).run(until=Stage.MASK)
        again = replace(made_cohort(4, content="d" * 64), states=dict(old.states))
        with pytest.raises(Refused, match="content of the attempt"):
            again.exchange()
        same = replace(made_cohort(4), states=dict(old.states)).run(until=Stage.SHARE)
        for client in same.vectors:  # the same advertisements, so the same requests and answers
            assert same.ask(client) == old.states[client].answers[Stage.SHARE]


def replace_parts(cohort, client: str, parts) -> bytes:
    found = Request.read(unmasking.request(cohort.server, client))
    return replace(found, parts=parts).to_bytes()
