"""Predicted sizes against real messages, the paper's figures, and plans."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedran
from fedran.wire.plan import MIXTURE_WORTH
from fedran.wire.sizes import (
    head_bytes,
    mixture_bytes,
    mixture_groups,
    parse_bytes,
    upload_bytes,
)
from helpers.wire.messages import CENTERS


@pytest.fixture(scope="module", params=["pooled", "gaussian"])
def features(request):
    """Random features of clustered rows: pooled activations (non-negative), or plain normals."""
    pooled = request.param == "pooled"
    n, d, M = (800, 1280, 2048) if pooled else (800, 512, 1024)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, n)
    Z = rng.standard_normal((10, d))[y] / 2 + rng.standard_normal((n, d))
    phi = fedran.RandomFeatures(d, M, source={"backbone": "test", "weights": "0" * 64})
    return phi, phi(np.maximum(Z, 0) if pooled else Z), y


@pytest.fixture(scope="module")
def summary_of(features):
    """The summary of the features at a rank and centring; every one is made once."""
    phi, H, y = features
    return cache(
        lambda rank, center: fedran.summarize(
            H, y, rank=rank, center=center, fingerprint=phi.fingerprint
        )
    )


@pytest.mark.parametrize("bits", [4.0, 5.0, 8.0])
@pytest.mark.parametrize("center", CENTERS)
def test_predicted_upload_sizes_are_close_to_real_uploads(summary_of, bits, center):
    for rank in (32, 128, 256):
        s = summary_of(rank, center)
        sent = len(fedran.encode(s, bits=bits))
        stated = upload_bytes(s.out_features, rank, 10, bits, rows_per_class=80)
        assert 0.85 * sent < stated < 1.3 * sent, f"rank {rank}"


@pytest.mark.parametrize("rows", [3, 12, 40, 80])
def test_predicted_sizes_follow_the_rows_per_class(features, rows):
    """Class sums of few rows get fewer bits. At rank 4 they are most of the message."""
    phi, H, y = features
    few = np.concatenate([np.flatnonzero(y == c)[:rows] for c in range(10)])
    s = fedran.summarize(H[few], y[few], rank=4, fingerprint=phi.fingerprint)
    sent = len(fedran.encode(s))
    stated = upload_bytes(phi.out_features, 4, 10, rows_per_class=int(np.mean(s.counts)))
    assert 0.85 * sent < stated < 1.25 * sent


@settings(deadline=None)
@given(
    budget=st.integers(1, 10**8),
    M=st.integers(1, 10**4),
    C=st.integers(1, 300),
    bits=st.floats(2, 14),
)
def test_the_largest_rank_fits_and_the_next_does_not(budget, M, C, bits):
    p = fedran.plan(budget, out_features=M, n_classes=C, bits=bits)
    assert 0 <= p.rank <= M
    assert p.upload == upload_bytes(M, p.rank, C, bits)
    assert p.upload <= budget or p.rank == 0
    assert p.rank == M or upload_bytes(M, p.rank + 1, C, bits) > budget
    assert p.download == head_bytes(M, C)


def test_max_bytes_holds_for_any_data(features):
    phi, H, y = features
    s = fedran.summarize(H, y, rank=200, fingerprint=phi.fingerprint)
    whole = len(fedran.encode(s))
    for ceiling in (whole, whole - 1, whole // 2, 40_000):
        blob = fedran.encode(s, max_bytes=ceiling)
        assert 0.9 * ceiling - 2000 < len(blob) <= ceiling
        smaller = fedran.decode(blob)
        assert smaller.accounts.cut >= s.accounts.cut
    with pytest.raises(ValueError, match="max_bytes=1000 is too small: 10 class sums"):
        fedran.encode(s, max_bytes=1000)


@pytest.mark.parametrize(("group_size", "min_group"), [(5, 1), (3, 1), (6, 5), (12, 10), (8, 4)])
def test_predicted_mixture_sizes_are_close_to_real_ones(group_size, min_group):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 6, 900)
    Z = np.maximum(rng.standard_normal((6, 300))[y] / 2 + rng.standard_normal((900, 300)), 0)
    phi = fedran.RandomFeatures(300, 8, kind="hellinger", source={"backbone": "test"})
    m = fedran.condense(Z, y, phi, group_size, min_group)
    assert 0.6 < mixture_groups(900, group_size, min_group) / m.n_groups < 1.6
    stated, sent = mixture_bytes(300, 900, 6, group_size, min_group), len(fedran.encode(m))
    assert 0.6 * sent < stated < 1.6 * sent


@settings(deadline=None, max_examples=50)
@given(
    budget=st.integers(1000, 10**7),
    M=st.integers(100, 10**4),
    d=st.integers(10, 2000),
    n=st.integers(1, 5000),
    min_group=st.integers(1, 20),
)
def test_a_mixture_is_planned_where_the_rank_that_fits_is_small(budget, M, d, n, min_group):
    p = fedran.plan(
        budget, out_features=M, n_classes=10, in_features=d, n_rows=n, min_group=min_group
    )
    if p.group_size is None:
        assert p.message == "summary"
        assert p.mixture_upload is None
        assert n < 10 * min_group or mixture_bytes(d, n, 10, n, min_group) > budget
        return
    assert n >= 10 * min_group  # a mixture leaves out smaller classes
    assert p.mixture_upload == mixture_bytes(d, n, 10, p.group_size, min_group) <= budget
    assert (p.message == "mixture") == (p.rank < max(1, MIXTURE_WORTH * n))
    if p.group_size > max(5, min_group + 1):
        assert mixture_bytes(d, n, 10, p.group_size - 1, min_group) > budget


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "budget_bytes or rank"),
        ({"budget_bytes": 9, "rank": 9}, "budget_bytes or rank"),
        ({"budget_bytes": float("nan")}, "budget_bytes"),
        ({"rank": 101}, "rank"),
        ({"rank": 9, "classes_seen": -1}, "classes_seen"),
        ({"rank": 9, "bits": 15}, "bits"),
    ],
)
def test_wrong_arguments_of_plan_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        fedran.plan(**{"out_features": 100, "n_classes": 5, **options})


@pytest.mark.parametrize("text", ["", "MB", "1.2.3", "5 parsecs", "-1"])
def test_text_that_is_no_size_in_bytes_is_refused(text):
    with pytest.raises(ValueError, match="expected a size"):
        parse_bytes(text)


def test_a_plan_never_has_more_columns_than_the_rows_span():
    p = fedran.plan(2**30, out_features=8192, n_classes=20, in_features=1280, n_rows=2000)
    assert p.rank == 1980
    assert fedran.plan(2**30, out_features=8192, n_classes=20).rank == 8192
