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
from fedran.federation.secure.masking import masking, unmasking
from fedran.federation.secure.masking.attempt import (
    STAGES,
    Answer,
    AttemptFailed,
    Stage,
)
from helpers.federation.secure_sums import KEYS, made_attempt, made_cohort


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
        old = made_cohort(3).run(until=Stage.MASK)
        shares = [s for pair in old.states["s00"].held.values() for s in pair]
        request = unmasking.request(old.server, "s00")
        new = old.another_attempt().run(until=Stage.SHARE)
        saved = new.states["s00"].to_bytes()
        assert not any(share in saved for share in shares)
        with pytest.raises(Refused, match="number of the attempt"):
            new.answer("s00", request)

    def test_a_site_whose_sum_was_revealed_takes_part_in_no_other_one(self):
        """The difference of two sums could be one site's vector."""
        first = made_cohort(6).run()
        second = first.another_attempt()
        for client in second.server.asked:
            with pytest.raises(Refused, match="one sum only; give them a new task id"):
                second.ask(client)

    @given(st.data())
    @settings(max_examples=15, deadline=None)
    def test_no_two_sums_of_a_task_share_a_site(self, data):
        """A server opens attempts over any sites, and completes each with as few as possible."""
        cohort, sums = made_cohort(data.draw(st.integers(4, 7))), []
        for _ in range(3):
            cohort = cohort.another_attempt()
            for stage in STAGES:
                asked = data.draw(st.permutations(cohort.server.asked))
                least = data.draw(st.integers(3, len(asked))) if asked else 0
                for client in asked:
                    with suppress(Refused):
                        if len(cohort.server.answered(stage)) < max(least, cohort.server.needed):
                            answer = cohort.ask(client)
                            cohort.server = unmasking.collect(cohort.server, client, answer)
                with suppress(AttemptFailed):
                    cohort.server = unmasking.close(cohort.server)
                if cohort.server.stage is stage:
                    break
            if cohort.server.stage is None:
                sums.append(cohort.server.survivors)
        members = [client for survivors in sums for client in survivors]
        assert len(members) == len(set(members))

    @pytest.mark.parametrize("n_sites", [3, 4])
    @pytest.mark.parametrize("stage", [Stage.CONFIRM, Stage.REVEAL, None])
    def test_a_site_that_has_sent_its_vector_takes_part_in_no_other_attempt(self, n_sites, stage):
        second = made_cohort(n_sites, length=1).run(until=stage).another_attempt()
        with pytest.raises(Refused, match="in which this site has sent its rows"):
            second.ask("s00")

    @pytest.mark.parametrize("stage", [Stage.SHARE, Stage.MASK])
    def test_before_its_vector_is_sent_a_site_takes_part_again(self, stage):
        second = made_cohort(5).run(until=stage).another_attempt().run({Stage.MASK: ["s02"]})
        np.testing.assert_array_equal(unmasking.unmask(second.server), second.plain_sum())

    @pytest.mark.parametrize("stage", STAGES[1:])
    def test_an_attempt_whose_secrets_were_deleted_is_not_answered(self, stage):
        cohort = made_cohort(4).run(until=stage)
        state = cohort.states["s00"]
        cohort.states["s00"] = replace(state, secrets={}, held={})
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
    first = made_cohort(3, 256).run(until=Stage.CONFIRM)
    second = replace(first.another_attempt(), states={}).run(until=Stage.CONFIRM)
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
