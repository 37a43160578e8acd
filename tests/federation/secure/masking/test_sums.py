"""The unmasked sum equals the plain sum of the survivors' vectors, whoever drops out and when."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedran.federation.secure.masking import unmasking
from fedran.federation.secure.masking.attempt import STAGES, AttemptFailed, Stage, threshold
from helpers.federation.secure_sums import made_cohort

NEVER = len(STAGES)


def stages_that_fail(leaves: list[int], min_sites: int) -> list[Stage]:
    """Reference: the stages that too few sites answer. ``leaves``: first missed stage per site."""
    n = sum(stage > 0 for stage in leaves)
    failed = []
    for number, stage in enumerate(STAGES):
        present = sum(leave > number for leave in leaves)
        least = {
            Stage.ADVERTISE: min_sites,
            Stage.SHARE: max(min_sites, threshold(n)),
            Stage.MASK: max(min_sites, threshold(n)),
            Stage.CONFIRM: threshold(n),
            Stage.REVEAL: threshold(n),
        }
        if present < least[stage]:
            failed.append(stage)
    return failed


@given(
    leaves=st.lists(
        st.one_of(st.just(NEVER), st.just(NEVER), st.integers(0, NEVER)), min_size=3, max_size=9
    ),
    length=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    min_sites=st.integers(3, 5),
    killed=st.sets(st.sampled_from(STAGES)),
)
@example([NEVER] * 6 + [0, 1, 2], 7, 0, 3, set(STAGES))
@example([3] + [NEVER] * 4 + [4, 2], 7, 0, 3, set())
@settings(max_examples=40, deadline=None)
def test_sum_with_dropouts_and_restarts_at_every_stage(leaves, length, seed, min_sites, killed):
    cohort = made_cohort(len(leaves), length, seed, min_sites=min_sites)
    drops = {
        stage: [f"s{i:02d}" for i, leave in enumerate(leaves) if leave == number]
        for number, stage in enumerate(STAGES)
    }
    failing = stages_that_fail(leaves, min_sites)
    absent: set[str] = set()
    for stage in STAGES:
        absent |= set(drops[stage])
        cohort.exchange(absent)
        if stage in killed:
            cohort = cohort.resumed()
        if stage in failing:
            with pytest.raises(AttemptFailed, match=f"answered stage {stage}"):
                unmasking.close(cohort.server)
            return
        cohort.server = unmasking.close(cohort.server)
    alive = [f"s{i:02d}" for i, leave in enumerate(leaves) if leave > STAGES.index(Stage.MASK)]
    assert list(cohort.server.survivors) == alive
    expected = [sum(int(cohort.vectors[c][k]) for c in alive) % 2**32 for k in range(length)]
    assert unmasking.unmask(cohort.resumed().server).tolist() == expected


def test_fifty_sites_with_dropouts_at_every_exchange():
    """1,024 random features, 20 classes: class sums, counts, energy and a sketch of width 8."""
    length = 1024 * 20 + 20 + 1 + 1024 * 8
    cohort = made_cohort(50, length)
    drops = {s: [f"s{10 * k + j:02d}" for j in range(3)] for k, s in enumerate(STAGES)}
    cohort.run(drops)
    assert len(cohort.server.survivors) == 41
    np.testing.assert_array_equal(unmasking.unmask(cohort.server), cohort.plain_sum())
