"""What a secure sum adds up: totals of sites as integers, and their sum as a summary."""

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.core.errors import Refused
from fedran.core.private.sketch_sums import sketch_sums
from fedran.federation.secure.masking.contribution import (
    Content,
    encode_contribution,
    sum_to_summary,
)

PHI = fedran.RandomFeatures(6, 64, "cosine", seed=0, source="test")
CONTENT = Content((0, 1, 2), 0, 7, 3, 100)


def rows(seed, n=30):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)  # nobody has a row of class 2
    return PHI(rng.standard_normal((n, 6))), y


def summed(content, seeds=(1, 2, 3)):
    omega = content.test_matrix(64)
    found = [sketch_sums(*rows(seed), content.classes, omega) for seed in seeds]
    codes = [encode_contribution(t, content, PHI.fingerprint) for t in found]
    total = np.sum(codes, axis=0, dtype=np.uint32)
    return sum_to_summary(total, content, PHI.fingerprint, 64, len(seeds))


@pytest.mark.parametrize("sketch", [0, 16])
def test_the_sum_of_sites_is_the_summary_of_their_rows_to_its_error_bound(sketch):
    found = summed(replace(CONTENT, sketch=sketch))
    H, y = (np.concatenate(parts) for parts in zip(*map(rows, (1, 2, 3)), strict=True))
    exact = fedran.summarize(H, y, rank=None, fingerprint=PHI.fingerprint)
    assert (found.classes, found.counts) == (exact.classes, exact.counts)
    assert np.linalg.norm(found.gram() - exact.gram(), 2) <= found.accounts.eps_G
    assert np.abs(found.class_sums - exact.class_sums).max() <= max(found.accounts.eps_B, 1e-6)


def test_every_field_of_the_content_changes_its_digest_and_survives_a_message():
    other = {"classes": (0, 1), "sketch": 8, "center": (0.5,), "seed": 8, "sites": 4}
    found = {replace(CONTENT, **{k: v}).digest for k, v in {**other, "max_rows": 99}.items()}
    assert len(found | {CONTENT.digest}) == 7
    assert Content.read(CONTENT.fields()) == CONTENT
    for wrong in (
        None,
        {**CONTENT.fields(), "center": [math.nan]},
        {**CONTENT.fields(), "sites": 0},
    ):
        with pytest.raises(Refused):
            Content.read(wrong)


def test_more_rows_or_larger_numbers_than_agreed_are_not_sent():
    H, y = rows(1, 101)
    with pytest.raises(Refused, match="rows: expected at most 100, the server's max_rows, got 101"):
        encode_contribution(sketch_sums(H, y, CONTENT.classes), CONTENT, PHI.fingerprint)
    large = sketch_sums(1e6 * H[:50], y[:50], CONTENT.classes)
    with pytest.raises(ValueError, match="nothing was sent"):
        encode_contribution(large, CONTENT, PHI.fingerprint)
