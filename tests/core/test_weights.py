"""Weighted rows: a row of weight w is w equal rows, everywhere."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedran
from fedran.core.aggregator import Aggregator
from fedran.core.calibration import Calibration
from fedran.core.consistency import check_one_site
from fedran.core.summarize import Summarizer, summarize
from helpers.reference import quick

problems = st.tuples(st.integers(1, 14), st.integers(1, 6), st.integers(0, 2**32 - 1))
centers = st.sampled_from(["class", None])


def problem(n, M, seed):
    rng = np.random.default_rng(seed)
    times = rng.integers(0, 4, n)
    times[0] = 2
    y = rng.choice(np.array(["a", "b", "c"]), n)
    return rng.standard_normal((n, M)), y, times


def aggregated(*summaries, **server) -> Aggregator:
    agg = Aggregator(summaries[0].out_features, dtype="float64", **server)
    for i, s in enumerate(summaries):
        agg.absorb(s, client=f"c{i}", task="t")
    return agg


def assert_same(a, b) -> None:
    """The same Gram, sums and ridge; counts and weights differ in name only."""
    assert a.classes == b.classes
    scale = 1 + np.abs(b.gram()).max()
    np.testing.assert_allclose(a.gram(), b.gram(), atol=1e-9 * scale)
    np.testing.assert_allclose(a.class_sums, b.class_sums, atol=1e-9 * scale)
    np.testing.assert_allclose(a.sums.totals, b.sums.totals)
    assert a.accounts.energy == pytest.approx(b.accounts.energy)
    assert a.accounts.weight == pytest.approx(b.accounts.weight)
    assert fedran.Ridge().value(a.accounts) == pytest.approx(fedran.Ridge().value(b.accounts))


@quick
@given(problems, centers, st.sampled_from([np.asarray, torch.as_tensor]), st.integers(0, 14))
def test_weighted_rows_are_repeated_rows(size, center, make, cut):
    H, y, times = problem(*size)
    expected = summarize(H.repeat(times, axis=0), y.repeat(times), None, center=center)
    whole = summarize(make(H), y, None, center=center, sample_weight=times).to(None).validate()
    assert_same(whole, expected)
    assert whole.accounts.n_rows == np.count_nonzero(times)
    halves = [
        summarize(H[s], y[s], None, center=center, sample_weight=times[s])
        for s in (slice(cut), slice(cut, None))
    ]
    assert_same(halves[0] + halves[1], expected)
    plain = summarize(H, y, None, center=center)
    both = summarize(
        np.concatenate([H, H.repeat(times, axis=0)]),
        np.concatenate([y, y.repeat(times)]),
        None,
        center=center,
    )
    assert_same(plain + whole, both)
    streaming = Summarizer(H.shape[1], None, center=center, max_bytes=2**20)
    for s in (slice(cut), slice(cut, None)):
        streaming.update(H[s], y[s], sample_weight=times[s])
    assert_same(streaming.finish(), expected)
    head, same = aggregated(whole).solve(), aggregated(expected).solve()
    np.testing.assert_allclose(head.weights, same.weights, rtol=1e-4, atol=1e-6)


@quick
@given(problems, centers)
def test_weights_are_stored(size, center):
    H, y, times = problem(*size)
    weights = times * 0.37
    s = summarize(H, y, None, center=center, sample_weight=weights)
    s = replace(s, calibration=Calibration.of_scores(np.eye(3)[:1], np.array([0]), weights[:1]))
    agg = aggregated(s)
    again = fedran.decode(fedran.encode(agg), fedran.Aggregator)
    assert again.accounts == agg.accounts
    assert again.solve().calibration.total == pytest.approx(weights[0])
    third = summarize(H, y, None, center=center)
    for one in (agg, again):
        one.absorb(third, client="x", task="t")
    np.testing.assert_array_equal(again.solve().weights, agg.solve().weights)


def test_what_was_weighted_can_be_taken_out_again():
    (H, y, times), rest = problem(12, 5, 0), problem(9, 5, 1)
    whole = summarize(H, y, None, sample_weight=times + 0.5)
    other = summarize(rest[0], rest[1], None)
    head = aggregated(whole, other).solve_without([whole])
    np.testing.assert_allclose(head.weights, aggregated(other).solve().weights, atol=1e-5)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(3), "must hold 4 numbers, got shape"),
        (np.ones((4, 1)), "must hold 4 numbers"),
        ([1, 1, -1, 1], r"at least 0, got -1.0 in row 2"),
        ([1, np.nan, 1, 1], r"finite and at least 0, got nan in row 1"),
    ],
)
def test_weights_are_numbers_of_at_least_0_one_per_row(weights, words):
    with pytest.raises(ValueError, match=words):
        summarize(np.eye(4), [0, 1, 0, 1], sample_weight=weights)


def test_weights_that_no_rows_have_are_refused():
    s = summarize(np.eye(4), [0, 1, 0, 1], sample_weight=[1, 2, 3, 4])
    cases = [
        (replace(s, sums=replace(s.sums, weights=(0.0, 6.0))), "finite, positive numbers"),
        (replace(s, sums=replace(s.sums, weights=(5.0, 6.0))), "at most 10 in all"),
        (replace(s, sums=replace(s.sums, weights=None)), "0 without weights"),
        (replace(s, accounts=replace(s.accounts, weight_excess=-4.0)), "positive total weight"),
    ]
    for forged, words in cases:
        with pytest.raises(fedran.Refused, match=words):
            forged.validate()
    with pytest.raises(fedran.Refused, match="2 numbers"):
        replace(s.sums, weights=(1.0,))


def test_a_site_of_a_federation_sends_neither_weights_nor_histograms():
    s = summarize(np.eye(4), [0, 1, 0, 1], 2, sample_weight=[1, 1, 1, 1000])
    with pytest.raises(fedran.Refused, match=r"weights: expected none.*repeat rows instead"):
        check_one_site(s)
    plain = summarize(np.eye(4), [0, 1, 0, 1], 2)
    check_one_site(plain)
    with pytest.raises(fedran.Refused, match=r"histograms: expected none.*without its calibration"):
        check_one_site(replace(plain, calibration=Calibration.empty()))
