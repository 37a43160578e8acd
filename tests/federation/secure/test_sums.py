"""The unmasked sum equals the plain sum of the survivors' vectors."""

from __future__ import annotations

import numpy as np
import pytest

from fedran.federation.secure import unmasking
from fedran.federation.secure.attempt import STAGES
from helpers.secure_sums import made_cohort


@pytest.mark.parametrize("stage", STAGES)
def test_sum_with_one_site_that_drops_out_at_a_stage(stage):
    cohort = made_cohort(5).run({stage: ["s02"]})
    np.testing.assert_array_equal(unmasking.unmask(cohort.server), cohort.plain_sum())
    assert len(cohort.server.survivors) == (4 if STAGES.index(stage) < 3 else 5)
