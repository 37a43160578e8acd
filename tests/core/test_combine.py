"""One summary for many: against the sum of dense Grams, and against adding them one by one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedran
from fedran.core.bounds import gram_bounds
from fedran.core.errors import Refused
from fedran.core.fingerprint import Fingerprint
from fedran.core.summarize import summarize
from fedran.core.summary import combine
from helpers.reference import (
    ROUNDING,
    best_rank,
    features,
    federations,
    frobenius,
    onehot,
    quick,
    spectral,
)

centers = st.sampled_from(["class", None])


def summaries(federation, rank=None, dtype=np.float64, center="class"):
    return [summarize(H.astype(dtype), y, rank, center=center) for _, _, H, y in federation.uploads]


def dense(parts):
    """The sum of the Grams, (M, M) float64."""
    return sum(replace(p, factor=p.factor.astype(np.float64)).gram() for p in parts)


def between(s):
    """The part of the Gram that follows from the class sums."""
    B, counts = s.class_sums, np.asarray(s.counts)
    return (B / counts) @ B.T if s.center else 0.0


@quick
@given(
    federations(),
    st.sampled_from([None, 1, 3, 50]),
    st.sampled_from(["float32", "float64"]),
    centers,
)
def test_combine_without_a_rank_is_the_sum_of_the_grams(federation, rank, dtype, center):
    parts = summaries(federation, rank, dtype, center)
    whole = combine(parts)
    room = 1e-5 if dtype == "float32" else 1e-12
    scale = 1 + whole.accounts.energy
    np.testing.assert_allclose(whole.gram(), dense(parts), atol=room * scale)
    labels = federation.y
    expected = federation.H.T @ onehot(labels, whole.classes)
    np.testing.assert_allclose(whole.class_sums, expected, atol=room * scale)
    assert whole.counts == tuple(labels.count(c) for c in whole.classes)
    assert whole.accounts == sum((p.accounts for p in parts[1:]), parts[0].accounts)
    assert whole.factor.dtype == dtype
    shared = sum(len(p.classes) for p in parts) - len(whole.classes) if center else 0
    assert whole.rank <= min(federation.M, sum(p.rank for p in parts) + shared)
    F = whole.factor.astype(np.float64)
    np.testing.assert_allclose(F.T @ F, np.diag(whole.sigma**2), atol=room * scale)
    whole.validate()


@quick
@given(federations(), st.sampled_from([None, 4]), st.integers(1, 30), centers)
def test_combine_with_a_rank_is_the_best_approximation_and_the_accounts_bound_its_error(
    federation, local, rank, center
):
    parts = summaries(federation, local, center=center)
    cut, G = combine(parts, rank), dense(parts)
    room = ROUNDING * (1 + cut.accounts.energy)
    assert cut.rank <= rank
    within = G - between(cut)
    best, values = best_rank(within, rank)
    np.testing.assert_allclose(frobenius(G - cut.gram()), frobenius(within - best), atol=room)
    lost = cut.accounts.cut - sum(p.accounts.cut for p in parts)
    assert lost == pytest.approx(values[rank:].sum(), abs=room)
    error, bounds = federation.gram - cut.gram(), gram_bounds(cut.accounts)
    assert spectral(error) <= min(bounds.spectral, bounds.relative_tail) + room
    assert frobenius(error) <= bounds.frobenius + room
    assert np.trace(error) == pytest.approx(bounds.trace, abs=room)
    assert np.linalg.eigvalsh(error)[0] >= -room
    if lost > room:
        assert cut.accounts.merges == 1
    cut.validate()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("labels", ["shared", "disjoint"])
def test_a_server_behind_an_edge_gets_the_same_head_as_a_flat_one(dtype, labels):
    rng = np.random.default_rng(7)
    Hs = [features(rng, 60, 80).astype(dtype) for _ in range(4)]
    ys = [
        [int(v) + (3 * k if labels == "disjoint" else 0) for v in np.arange(60) % 3]
        for k in range(4)
    ]
    for H, y in zip(Hs, ys, strict=True):
        H[np.arange(60), y] += 2.0
    parts = [summarize(H, y, 20) for H, y in zip(Hs, ys, strict=True)]
    flat, edge = (fedran.Aggregator(80, dtype=dtype) for _ in range(2))
    for k, part in enumerate(parts):
        flat.absorb(part, client=f"c{k}", task="may")
    edge.absorb(combine(parts[:3]), client="edge", task="may")
    edge.absorb(combine(parts[3:]), client="edge", task="may.2")
    room = 1e-5 if dtype == "float32" else 1e-10
    np.testing.assert_allclose(edge.gram(), flat.gram(), atol=room * flat.accounts.energy)
    a, b = edge.solve(), flat.solve()
    assert a.diagnosis.lam == pytest.approx(b.diagnosis.lam)
    assert a.classes == b.classes
    np.testing.assert_allclose(a.weights, b.weights, atol=100 * room * np.abs(b.weights).max())
    rows = features(rng, 200, 80).astype(dtype)
    scores = np.sort(b.scores(rows), axis=1)
    clear = scores[:, -1] - scores[:, -2] > 1e-3
    assert clear.mean() > 0.9
    assert (np.asarray(a.predict(rows)) == np.asarray(b.predict(rows)))[clear].all()


def test_combined_summaries_survive_encoding_in_float32_to_rounding():
    rng = np.random.default_rng(3)
    M = 1200  # the wide route: eigenvectors of 700 columns in mixed precision
    parts = [
        summarize(features(rng, 200, M, 0.003).astype(np.float32), [k] * 200, 140) for k in range(5)
    ]
    parts = [fedran.decode(fedran.encode(p)) for p in parts]
    whole = combine(parts)
    assert whole.rank == 700
    back = fedran.decode(fedran.encode(whole, "float32"))
    G = dense(parts)
    assert frobenius(dense([back]) - G) < 1e-6 * frobenius(G)
    assert back.accounts.cut == pytest.approx(sum(p.accounts.cut for p in parts))


def test_a_steep_spectrum_keeps_its_small_directions():
    rng = np.random.default_rng(0)
    V, _ = np.linalg.qr(rng.standard_normal((50, 12)))
    F = (V * np.logspace(0, -5, 12)).astype(np.float32)
    s = summarize(np.ones((12, 50), np.float32), [0] * 12, 12)
    parts = [
        replace(
            s,
            factor=F[:, k::2],
            accounts=replace(s.accounts, energy=float((F[:, k::2] ** 2).sum())),
        )
        for k in (0, 1)
    ]
    whole = combine(parts)
    np.testing.assert_allclose(whole.sigma, np.logspace(0, -5, 12), rtol=1e-2)


def test_combining_one_summary_keeps_its_content():
    s = replace(summarize(np.random.default_rng(0).random((9, 6)), [0] * 9, 4), digest="abc")
    same = combine([s])
    np.testing.assert_allclose(same.gram(), s.gram(), atol=1e-12)
    assert (same.accounts, same.classes, same.digest) == (s.accounts, s.classes, None)
    assert combine([s], rank=2).accounts == s.truncate(2).accounts


def test_a_rank_beyond_what_there_is_keeps_everything():
    rng = np.random.default_rng(1)
    parts = [summarize(rng.random((n, 8)), [0] * n) for n in (3, 2)]
    for rank in (4, 6, 8, 1000):
        assert combine(parts, rank).accounts == combine(parts).accounts
        assert combine(parts, rank).rank == 4  # 5 rows minus one class mean
    assert combine(parts, 0.9).accounts.cut_fraction <= 0.1
    wide = [summarize(rng.random((20, 8)), [0] * 20) for _ in range(3)]
    assert combine(wide).rank == 8
    assert combine(wide, 1000).accounts.merges == 0


def test_the_same_rows_twice_need_no_more_columns():
    s = summarize(np.random.default_rng(0).random((4, 9)), [0] * 4)
    assert combine([s, s, s]).rank == s.rank == 3
    assert combine([s, s, s]).accounts.cut == pytest.approx(0, abs=1e-12)


def test_empty_summaries_add_nothing():
    nothing = summarize(np.zeros((0, 5)), [])
    some = summarize(np.eye(5), list(range(5)))
    np.testing.assert_allclose(combine([nothing, some, nothing]).gram(), np.eye(5), atol=1e-15)
    assert combine([nothing, nothing], rank=3).rank == 0


def test_combined_tensors_stay_tensors():
    rng = np.random.default_rng(0)
    a, b = (summarize(rng.random((6, 7)), [0, 1] * 3) for _ in range(2))
    there = combine([a.to("cpu"), b], rank=5)
    assert isinstance(there.factor, torch.Tensor)
    np.testing.assert_allclose(there.to(None).gram(), combine([a, b], rank=5).gram(), atol=1e-12)


def test_summaries_of_other_features_or_widths_are_not_combined():
    rows = np.eye(3)
    a, b = (summarize(rows, [0, 1, 2], fingerprint=Fingerprint.of(seed=k)) for k in (0, 1))
    with pytest.raises(Refused, match="seed is 0 here and 1 there"):
        combine([a, b])
    with pytest.raises(Refused, match="the other has none"):
        combine([a, summarize(rows, [0, 1, 2])])
    with pytest.raises(Refused, match="out_features: expected 3, got 4"):
        combine([summarize(rows, [0, 1, 2]), summarize(np.eye(4), [0] * 4)])
    with pytest.raises(ValueError, match="at least one summary"):
        combine([])
    with pytest.raises(ValueError, match="rank must be"):
        combine([a], rank=0)
