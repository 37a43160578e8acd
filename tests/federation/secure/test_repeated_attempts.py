"""Attacks of a server that repeats a sum, and why each fails."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran.core.errors import Refused
from fedran.federation.secure import masking, unmasking
from fedran.federation.secure.attempt import (
    STAGES,
    Answer,
    AttemptFailed,
    Stage,
    threshold,
)
from fedran.federation.secure.site_state import SentVector
from helpers.secure_sums import KEYS, made_attempt, made_cohort


class TestAttempts:
    def test_nothing_is_revealed_when_an_attempt_fails(self):
        cohort = made_cohort(6).run(until=Stage.MASK)
        cohort.exchange(["s03", "s04", "s05"])
        with pytest.raises(AttemptFailed):
            unmasking.close(cohort.server)
        forced = replace(cohort.server, stage=Stage.CONFIRM)  # the server goes on nevertheless
        for client in forced.asked:
            with pytest.raises(Refused, match="survivors: expected 5 to 128 sites, got 3"):
                cohort.answer(client, unmasking.request(forced, client))
        assert not any(Stage.REVEAL in state.answers for state in cohort.states.values())

    def test_the_shares_of_a_failed_attempt_are_gone_when_the_next_begins(self):
        old = made_cohort(5).run(until=Stage.REVEAL)
        shares = [s for pair in old.states["s00"].held.values() for s in pair]
        request = unmasking.request(old.server, "s00")
        new = old.another_attempt().run(until=Stage.SHARE)
        saved = new.states["s00"].to_bytes()
        assert not any(share in saved for share in shares)
        with pytest.raises(Refused, match="number of the attempt"):
            new.answer("s00", request)

    def test_two_sums_of_a_task_cannot_differ_by_one_site(self):
        """The difference of the sums would be that site's vector."""
        first = made_cohort(6).run()
        second = first.another_attempt().run({Stage.MASK: ["s02"]}, until=Stage.CONFIRM)
        expected = (
            "survivors: expected the sites of the earlier sum of this task .*, got s00, s01, s03"
        )
        for client in second.server.asked:
            with pytest.raises(Refused, match=expected):
                second.ask(client)
        third = second.another_attempt().run({Stage.MASK: ["s02"]}, until=Stage.CONFIRM)
        with pytest.raises(Refused, match=expected):  # also not after one more attempt
            third.ask("s00")

    @given(st.data())
    @settings(max_examples=10, deadline=None)
    def test_no_combination_of_the_sums_of_a_task_gives_one_site(self, data):
        """A server opens attempts over any sites, and completes each with as few as possible."""
        cohort, sums = made_cohort(5), []
        for _ in range(3):
            cohort = cohort.another_attempt()
            absent = data.draw(st.sets(st.sampled_from(sorted(cohort.vectors)), max_size=1))
            try:
                cohort.run({Stage.MASK: absent}, until=Stage.CONFIRM)
            except AttemptFailed:
                continue
            for stage in (Stage.CONFIRM, Stage.REVEAL):
                asked = data.draw(st.permutations(cohort.server.asked))
                for client in asked:
                    with suppress(Refused):
                        if len(cohort.server.answered(stage)) < cohort.server.needed:
                            answer = cohort.ask(client)
                            cohort.server = unmasking.collect(cohort.server, client, answer)
                with suppress(AttemptFailed):
                    cohort.server = unmasking.close(cohort.server)
                if cohort.server.stage is stage:
                    break
            if cohort.server.stage is None:
                sums.append([float(c in cohort.server.survivors) for c in cohort.vectors])
        known = np.array(sums).reshape(-1, 5)
        rank = np.linalg.matrix_rank(known) if len(known) else 0
        for site in np.eye(5):
            assert np.linalg.matrix_rank(np.vstack([known, site])) == rank + 1

    @pytest.mark.parametrize("helpers", [0, 1])
    def test_participants_are_refused_exactly_if_two_sums_could_be_opened(self, helpers):
        """Compared with all ways in which sites can reveal one sum and confirm the other."""
        groups = [c for n in (3, 4, 5) for c in itertools.combinations("abcdef", n)]
        for then, now in itertools.product(groups[::3], groups):
            both = {
                len({*first} & {*second})
                for first in itertools.combinations(then, threshold(len(then)))
                for second in itertools.combinations(now, threshold(len(now)))
            }
            sent = SentVector("c" * 64, then, ())
            if min(both) <= helpers:  # nobody but helpers need break a rule
                with pytest.raises(Refused, match="participants: expected most of"):
                    sent.require_overlap(now, helpers)
            else:
                sent.require_overlap(now, helpers)

    @pytest.mark.parametrize("revealed", [False, True])
    def test_a_site_that_was_declared_dead_or_alive_is_in_no_sum_with_other_sites(self, revealed):
        """Sums over sites 0-6 and over 6-9 would give 0-5 minus 7-9, and so on to single sites."""
        absent = {Stage.ADVERTISE: ["s07", "s08", "s09"], Stage.CONFIRM: ["s06"]}
        first = made_cohort(10).run({**absent, Stage.CONFIRM: []} if revealed else absent)
        assert (Stage.REVEAL in first.states["s06"].answers) is revealed
        second = first.another_attempt()
        second.run({Stage.ADVERTISE: [f"s0{i}" for i in range(6)]}, until=Stage.SHARE)
        with pytest.raises(Refused, match=r"most of s00, s01, .*, got s06, s07, s08, s09"):
            second.ask("s06")

    def test_a_failed_attempt_that_nobody_can_open_is_repeated_with_other_sites(self):
        """Three sites need all three shares, so a site knows that nothing was opened without it."""
        first = made_cohort(5).run({Stage.ADVERTISE: ["s03", "s04"]}, until=Stage.REVEAL)
        assert set(first.states["s00"].answers) == set(STAGES[:4])
        second = first.another_attempt().run({Stage.ADVERTISE: ["s01", "s02"]})
        assert second.server.survivors == ("s00", "s03", "s04")

    @pytest.mark.parametrize("n_sites", [4, 5, 7, 10])
    def test_a_failed_attempt_is_repeated_without_the_sites_that_dropped_out(self, n_sites):
        first = made_cohort(n_sites, length=1).run(until=Stage.CONFIRM)
        gone = first.server.asked[threshold(n_sites) :]
        second = first.another_attempt().run({Stage.ADVERTISE: gone})
        assert second.server.survivors == first.server.asked[: threshold(n_sites)]

    def test_a_sum_that_was_lost_can_be_made_again_over_the_same_sites(self):
        first = made_cohort(6).run({Stage.MASK: ["s02"]})
        second = first.another_attempt().run({Stage.MASK: ["s02"]})
        np.testing.assert_array_equal(
            unmasking.unmask(second.server), unmasking.unmask(first.server)
        )

    def test_an_operator_can_agree_to_a_sum_without_a_site_that_left(self):
        first = made_cohort(5).run()
        second = first.another_attempt()
        request = unmasking.request(second.server, "s00")
        for client in ("s00", "s01", "s02", "s03"):
            second.states[client], answer = masking.advertise(
                request, second.identities[client], second.states[client], repeat=True
            )
            second.server = unmasking.collect(second.server, client, answer)
        second.run({Stage.ADVERTISE: ["s04"]})
        np.testing.assert_array_equal(unmasking.unmask(second.server), second.plain_sum())
        assert second.server.survivors == ("s00", "s01", "s02", "s03")

    @pytest.mark.parametrize("stage", STAGES[1:])
    def test_an_attempt_whose_secrets_were_deleted_is_not_answered(self, stage):
        cohort = made_cohort(4).run(until=stage)
        state = cohort.states["s00"]
        cohort.states["s00"] = replace(state, secrets={}, held={}, participants={})
        with pytest.raises(Refused, match="one that is under way at this site, got one that has"):
            cohort.ask("s00")

    def test_the_state_of_another_task_is_not_taken_for_the_previous_attempt(self):
        may = made_cohort(4).run(until=Stage.SHARE)
        june = made_cohort(4, task="june", number=2)
        request = unmasking.request(june.server, "s00")
        with pytest.raises(ValueError, match="previous must be the state of this site and this"):
            masking.advertise(request, may.identities["s00"], may.states["s00"])


def test_masks_of_two_attempts_are_unrelated():
    """The difference of two masked vectors of one site is not the difference of the vectors."""
    first = made_cohort(4, 256).run(until=Stage.CONFIRM)
    second = first.another_attempt().run(until=Stage.CONFIRM)
    for client in first.vectors:
        a, b = (
            Answer.read(
                c.states[client].answers[Stage.MASK],
                c.server.attempt,
                Stage.MASK,
                client,
                c.server.roster,
            ).parts["vector"]
            for c in (first, second)
        )
        equal = np.frombuffer(a, "<u4") == np.frombuffer(b, "<u4")
        assert equal.sum() < 3


def test_derived_keys_differ_by_purpose_site_and_every_field_of_the_attempt():
    roster = {"a": KEYS[0].public, "b": KEYS[1].public}
    changes = [
        {},
        {"federation": "other"},
        {"task": "june"},
        {"number": 2},
        {"fingerprint": "0" * 64},
        {"content": "0" * 64},
        {"length": 9},
        {"roster": "0" * 64},
        {"min_sites": 4},
    ]
    attempts = [replace(made_attempt(roster), **change) for change in changes]
    texts = [
        attempt.info(purpose, client=client)
        for attempt, purpose, client in itertools.product(
            attempts, ("commitment", "self-mask"), ("a", "b")
        )
    ]
    assert len(set(texts)) == len(changes) * 4
