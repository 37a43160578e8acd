"""What the server sees: no byte array that it stores or transmits tells anything about one site."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from scipy import stats

from fedran.federation.secure.masking import unmasking
from fedran.federation.secure.masking.attempt import STAGES, Answer, Request, Stage
from fedran.federation.secure.masking.ciphers import (
    add_mask,
    check_advertisements,
    pair_mask_key,
    participants_digest,
    private_key,
    self_mask_key,
)
from helpers.federation.secure_sums import made_cohort, shows

DROPS = {Stage.SHARE: ["s09"], Stage.MASK: ["s08"], Stage.CONFIRM: ["s07"]}
SURVIVORS = [f"s0{i}" for i in range(8)]
LENGTH = 16


@pytest.fixture(scope="module")
def recorded():
    """A finished sum of ten sites with dropouts: the cohort, its secrets, the server's view.

    The view holds every request, every answer and the stored state after every answer.
    """
    cohort = made_cohort(10, LENGTH, random=random.Random(5).randbytes)
    view, secrets, shares, absent = [], {}, {}, set()
    for stage in STAGES:
        absent |= set(DROPS.get(stage, ()))
        for client in cohort.server.waiting_for:
            if client not in absent:
                answer = cohort.ask(client)
                cohort.server = unmasking.collect(cohort.server, client, answer)
                view.append(cohort.server.to_bytes())
                state = cohort.states[client]
                secrets[client] = dict(state.secrets) or secrets[client]
                shares[client] = dict(state.held) or shares.get(client, {})
        cohort.server = unmasking.close(cohort.server)
    view += cohort.sent
    return cohort, view, secrets, shares


def test_no_part_of_a_vector_or_of_a_partial_sum_is_anywhere(recorded):
    cohort, view, _, _ = recorded
    sums = [
        np.sum([cohort.vectors[c] for c in some], axis=0, dtype=np.uint32)
        for count in range(2, len(SURVIVORS) + 1)
        for some in itertools.combinations(SURVIVORS, count)
    ]
    assert not shows(view, [*cohort.vectors.values(), *sums])


def test_the_search_finds_part_of_a_vector_at_any_place(recorded):
    vectors = recorded[0].vectors
    for place in range(8):
        assert shows([bytes(place) + vectors["s03"][5:11].tobytes() + b"end"], vectors.values())


def test_only_the_secrets_that_the_sum_needs_can_be_computed(recorded):
    """Seeds of survivors and the mask key of the site that dropped out are revealed, no others."""
    cohort, view, secrets, shares = recorded
    sent = [blob for blob in cohort.sent if b"secure answer" in blob]
    answers = [a for of in cohort.server.answers.values() for a in of.values()]
    revealed = [a for a in answers if a.stage is Stage.REVEAL]
    assert [a.client for a in revealed] == SURVIVORS[:7]
    for answer in revealed:
        for client, share in answer.parts.items():
            seed, key = shares[answer.client][client]
            assert share == (seed if client in SURVIVORS else key)
            assert (key if client in SURVIVORS else seed) not in b"".join(view)
    for client in cohort.vectors:
        for secret in secrets[client].values():
            assert not any(secret in b or secret.hex().encode() in b for b in view), client
    assert len(sent) == 10 + 9 + 8 + 7 + 7


def test_after_all_that_was_revealed_every_part_of_the_sum_is_still_masked(recorded):
    """The server removes every mask that it can compute. Only the whole sum becomes plain."""
    cohort, _, secrets, _ = recorded
    attempt, roster = cohort.server.attempt, cohort.server.roster
    participants = check_advertisements(cohort.server.answers[Stage.ADVERTISE].values())
    digest = participants_digest(participants)
    stripped = {}
    for client in SURVIVORS:
        blob = cohort.states[client].answers[Stage.MASK]
        data = Answer.read(blob, attempt, Stage.MASK, client, roster).parts["vector"]
        vector = np.frombuffer(data, "<u4").copy()
        add_mask(vector, self_mask_key(attempt, client, secrets[client]["seed"]), -1)
        dropped = private_key(secrets["s08"]["mask"])
        key = pair_mask_key(attempt, digest, dropped, participants[client]["mask"], (client, "s08"))
        add_mask(vector, key, -1)
        stripped[client] = vector
    for count in range(1, 9):
        for some in itertools.combinations(SURVIVORS, count):
            masked = np.sum([stripped[c] for c in some], axis=0, dtype=np.uint32)
            plain = np.sum([cohort.vectors[c] for c in some], axis=0, dtype=np.uint32)
            equal = int((masked == plain).sum())
            assert equal == (LENGTH if count == 8 else 0)


def looks_uniform(numbers: np.ndarray) -> bool:
    """Bytes by chi-square, numbers by Kolmogorov and Smirnov: random numbers pass but for 1e-9."""
    counts = np.bincount(numbers.view(np.uint8), minlength=256)
    ks = stats.kstest(numbers / 2.0**32, "uniform").pvalue
    return bool(stats.chisquare(counts).pvalue > 5e-10 and ks > 5e-10)


@pytest.mark.parametrize(
    "vector", [np.zeros(2**15, np.uint32), np.arange(2**15, dtype=np.uint32) % 1000]
)
def test_masked_vectors_and_their_partial_sums_look_uniform(vector):
    assert not looks_uniform(vector)  # the test can fail
    cohort = made_cohort(4, len(vector), random=random.Random(9).randbytes).run(until=Stage.MASK)
    cohort.vectors = dict.fromkeys(cohort.vectors, vector)
    masked = {}
    for client in cohort.server.asked:
        found = Answer.read(
            cohort.ask(client), cohort.server.attempt, Stage.MASK, client, cohort.server.roster
        )
        masked[client] = np.frombuffer(found.parts["vector"], "<u4")
    for count in range(1, 5):
        for some in itertools.combinations(masked.values(), count):
            assert looks_uniform(np.sum(some, axis=0, dtype=np.uint32))
    for a, b in itertools.combinations(masked.values(), 2):
        assert looks_uniform(a - b)
        assert abs(stats.pearsonr(a, b).statistic) < 6.2 / np.sqrt(len(a))  # 1e-9, two-sided


def test_requests_hold_nothing_but_relayed_messages_and_names(recorded):
    cohort, _, _, _ = recorded
    requests = [Request.read(b) for b in cohort.sent if b"secure request" in b]
    sizes = {
        stage: {len(p) for r in requests if r.stage is stage for p in r.parts.values()}
        for stage in STAGES
    }
    assert sizes == {
        Stage.ADVERTISE: set(),
        Stage.SHARE: {160},
        Stage.MASK: {94},
        Stage.CONFIRM: {0},
        Stage.REVEAL: {64},
    }
