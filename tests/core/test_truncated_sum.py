"""Theorem 1 and its corollary for the rank-bounded server, in both orders of merging."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedran.core import summary as summary_module
from fedran.core.aggregator import Aggregator
from fedran.core.bounds import gram_bounds
from fedran.core.summarize import summarize
from fedran.core.truncated_sum import TruncatedSum
from helpers.reference import ROUNDING, PaperServer, federations, frobenius, quick, spectral

orders = st.sampled_from(["flat", "paper"])
ranks = st.integers(1, 20)
devices = st.sampled_from([None, "cpu"])


centers = st.sampled_from(["class", None])


def run(federation, rank, server_rank, order, device=None, center="class"):
    merged = TruncatedSum(federation.M, server_rank, order, "float64", device)
    for _, task, H, y in federation.uploads:
        merged.add_summary(summarize(H, y, rank, center=center), task)
    return merged


def held(merged):
    """The Gram of past and open task together."""
    values, arrays = merged.state()
    total = 0.0
    for name in ("past", "open"):
        total = total + arrays[name] @ arrays[name].T
        if values["center"]:
            for b, n in zip(arrays[f"{name}_sums"], values[name]["counts"], strict=True):
                total = total + np.outer(b, b) / n
    return total


def assert_theorem_1(G, sketch, accounts):
    error = G - sketch
    bounds = gram_bounds(accounts)
    room = ROUNDING * accounts.energy
    assert spectral(error) <= bounds.spectral + room
    assert frobenius(error) <= bounds.frobenius + room
    assert np.trace(error) == pytest.approx(bounds.trace, abs=room)
    assert spectral(error) <= bounds.trace + room
    assert np.trace(error) <= bounds.relative_tail + room
    assert bounds.spectral <= bounds.trace + room
    assert np.linalg.eigvalsh(error)[0] >= -room


@quick
@given(federations(), ranks, ranks, orders, devices, centers)
def test_theorem_1_and_the_relative_tail(federation, rank, server_rank, order, device, center):
    merged = run(federation, rank, server_rank, order, device, center)
    assert_theorem_1(federation.gram, held(merged), merged.accounts)
    merged.close_task()
    assert merged.rank <= server_rank
    assert_theorem_1(federation.gram, held(merged), merged.accounts)


@quick
@given(federations(), ranks, ranks)
def test_paper_order_is_algorithm_1(federation, rank, server_rank):
    merged = run(federation, rank, server_rank, "paper", center=None)
    merged.close_task()
    literal = PaperServer(federation.M, server_rank)
    for task in federation.parts:
        literal.task([H for H, _ in task], rank)
    scale = merged.accounts.energy
    np.testing.assert_allclose(held(merged), literal.G, atol=1e-6 * scale)
    assert merged.accounts.eps_G == pytest.approx(literal.eps_G, abs=1e-6 * scale)


@quick
@given(federations(), ranks, ranks)
def test_flat_order_never_loses_more_than_one_cut_a_task(federation, rank, server_rank):
    merged = run(federation, rank, server_rank, "flat")
    merged.close_task()
    assert merged.accounts.merges <= len(federation.parts)


@quick
@given(federations(), orders, centers)
def test_merging_at_full_rank_is_exact(federation, order, center):
    merged = run(federation, None, federation.M, order, center=center)
    merged.close_task()
    scale = merged.accounts.energy
    np.testing.assert_allclose(held(merged), federation.gram, atol=ROUNDING * scale)
    assert merged.accounts.cut <= ROUNDING * scale


@quick
@given(federations(), ranks, orders, st.randoms(), centers)
def test_late_uploads_stay_within_the_theorem(federation, server_rank, order, random, center):
    uploads = federation.uploads
    random.shuffle(uploads)  # tasks open, close and are met again
    merged = TruncatedSum(federation.M, server_rank, order, "float64", None)
    for _, task, H, y in uploads:
        merged.add_summary(summarize(H, y, None, center=center), task)
        assert merged.open_task not in merged.closed
    assert_theorem_1(federation.gram, held(merged), merged.accounts)
    merged.close_task()
    assert_theorem_1(federation.gram, held(merged), merged.accounts)


def summary(seed=0, n=6, M=8):
    return summarize(np.random.default_rng(seed).random((n, M)), [0] * n)


@pytest.mark.parametrize("order", ["flat", "paper"])
class TestTasks:
    def test_a_new_task_closes_the_open_one(self, order):
        merged = TruncatedSum(8, 3, order, "float64", None)
        merged.add_summary(summary(0), "a")
        assert (merged.open_task, merged.closed) == ("a", set())
        merged.add_summary(summary(1), "b")
        assert (merged.open_task, merged.closed) == ("b", {"a"})
        merged.close_task()
        merged.close_task()
        assert (merged.open_task, merged.closed) == (None, {"a", "b"})

    def test_a_late_summary_goes_into_the_past_at_once(self, order):
        merged = TruncatedSum(8, 3, order, "float64", None)
        merged.add_summary(summary(0), "a")
        merged.add_summary(summary(1), "b")
        before = merged.state()[1]
        merged.add_summary(summary(2), "a")
        after = merged.state()[1]
        np.testing.assert_array_equal(after["open"], before["open"])
        assert not np.array_equal(after["past"], before["past"])
        assert merged.open_task == "b"

    def test_looking_ahead_commits_nothing(self, order):
        merged = TruncatedSum(8, 3, order, "float64", None)
        assert merged.as_if_closed().factor.shape == (8, 0)
        merged.add_summary(summary(0), "a")
        merged.add_summary(summary(1), "b")
        values, arrays = merged.state()
        ahead = merged.as_if_closed()
        assert merged.state()[0] == values
        np.testing.assert_array_equal(merged.state()[1]["past"], arrays["past"])
        merged.close_task()
        np.testing.assert_array_equal(merged.state()[1]["past"], ahead.factor)
        assert merged.accounts == ahead.accounts

    def test_a_restored_aggregator_continues_bit_for_bit(self, order):
        one = TruncatedSum(8, 3, order, "float32", None)
        for i, task in enumerate("aabc"):
            one.add_summary(summary(i), task)
        two = TruncatedSum(8, 3, order, "float32", None)
        two.restore(*one.state())
        for merged in (one, two):
            merged.add_summary(summary(9), "a")
            merged.add_summary(summary(10), "d")
        assert one.state()[0] == two.state()[0]
        for name in ("past", "open"):
            np.testing.assert_array_equal(one.state()[1][name], two.state()[1][name])

    def test_empty_summaries_change_only_the_task(self, order):
        merged = TruncatedSum(8, 3, order, "float64", None)
        nothing = summarize(np.zeros((0, 8)), [])
        merged.add_summary(nothing, "a")
        merged.add_summary(nothing, "a")
        merged.add_summary(nothing, "b")
        merged.add_summary(nothing, "a")
        assert (merged.rank, merged.open_task) == (0, "b")
        assert merged.accounts.n_rows == 0

    def test_an_open_task_is_never_wider_than_m(self, order):
        merged = TruncatedSum(8, 3, order, "float64", None)
        for i in range(5):
            merged.add_summary(summary(i), "a")
        assert merged.rank <= 8

    def test_a_failed_merge_changes_nothing(self, order, monkeypatch):
        merged = TruncatedSum(8, 3, order, "float64", None)
        merged.add_summary(summary(0), "a")
        values, arrays = merged.state()

        def fails(*_):
            raise np.linalg.LinAlgError("no convergence")

        for name in ("leading", "leading_qr"):
            monkeypatch.setattr(summary_module, name, fails)
        with pytest.raises(np.linalg.LinAlgError):
            merged.add_summary(summary(1), "b")
        assert merged.state()[0] == values
        np.testing.assert_array_equal(merged.state()[1]["open"], arrays["open"])


def test_torch_and_numpy_merge_alike():
    states = []
    for device in (None, "cpu"):
        agg = Aggregator(8, 3, dtype="float64", device=device)
        for i, task in enumerate("aab"):
            agg.absorb(summary(i), client=f"c{i}", task=task)
        states.append(agg.solve())
    assert isinstance(states[1].weights, torch.Tensor)
    np.testing.assert_allclose(states[0].weights, states[1].weights, atol=1e-6)


@pytest.mark.parametrize("rank", [0, -1, 1.0, True, "3"])
def test_a_bad_server_rank_is_refused(rank):
    with pytest.raises(ValueError, match="server_rank must be a positive integer or None"):
        Aggregator(8, rank)


def test_a_bad_order_is_refused():
    with pytest.raises(ValueError, match="order must be 'flat' or 'paper'"):
        Aggregator(8, 3, order="tree")
