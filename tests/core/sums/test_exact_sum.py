"""The exact learner against dense sums: factors, rows, packed Grams and other sums."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedran.core.labels import encode_labels
from fedran.core.solve.ridge import Ridge
from fedran.core.summarize import summarize
from fedran.core.sums.exact_sum import ExactSum
from helpers.core.reference import features, federations, onehot, quick, ridge


def add_all(total, H, y, block=5):
    classes, codes = encode_labels(y, len(H))
    slices = [slice(i, i + block) for i in range(0, len(H), block)]
    total.add_rows([(rows, H[rows]) for rows in slices], classes, codes)
    return total


@quick
@given(
    st.integers(1, 20),
    st.lists(st.integers(0, 9), max_size=6),
    st.integers(0, 2**32 - 1),
    st.sampled_from([None, "cpu"]),
    st.booleans(),
)
def test_the_sum_is_the_sum_of_grams_in_either_form(M, widths, seed, device, stack):
    rng = np.random.default_rng(seed)
    exact = ExactSum(M, "float64", device, stack=stack)
    expected = np.zeros((M, M))
    for w in widths:
        F = rng.standard_normal((M, w))
        exact.add_factor(F)
        expected += F @ F.T
        np.testing.assert_allclose(exact.gram(), expected, atol=1e-12 * (1 + np.trace(expected)))
    assert exact.width == sum(widths)
    limit = M // 4 if stack else 0
    assert exact.form == ("stack" if exact.width <= limit else "gram")


@quick
@given(federations(), st.sampled_from([None, "cpu"]), st.booleans())
def test_rows_summaries_and_sums_add_to_the_same_head(federation, device, stack):
    H, y = federation.H, federation.y
    sums = [ExactSum(federation.M, "float64", device, stack=stack) for _ in range(3)]
    by_rows, by_summaries, by_sums = sums
    for _, _, Hk, yk in federation.uploads:
        rows = Hk if device is None else torch.as_tensor(Hk)
        add_all(by_rows, rows, yk)
        by_summaries.add_summary(summarize(rows, yk, None))
        part = add_all(ExactSum(federation.M, "float64", device, stack=stack), rows, yk)
        by_sums.add_sum(part)
    lam = 0.03 * np.sum(H**2) / len(H)
    for total in sums:
        scale = np.sum(H**2)
        np.testing.assert_allclose(total.gram(), H.T @ H, atol=1e-9 * scale)
        classes = total.class_sums.classes
        expected = H.T @ onehot(y, classes)
        np.testing.assert_allclose(total.class_sums.sums, expected, atol=1e-9 * scale)
        assert total.class_sums.counts == tuple(y.count(c) for c in classes)
        assert total.accounts.n_rows == len(H)
        assert total.accounts.energy == pytest.approx(scale)
        full = ridge(H, y, classes, lam)
        weights = np.asarray(total.solve().weights)
        np.testing.assert_allclose(weights, full, atol=1e-5 * np.abs(full).max())


@pytest.mark.parametrize("rank", [3, None])
def test_the_summary_of_an_exact_sum_is_that_of_its_rows(rank):
    rng = np.random.default_rng(0)
    H, y = features(rng, 30, 8, 0.3), [0, 1, "a"] * 10
    total = add_all(ExactSum(8, "float64", stack=False), H, y)
    made, direct = total.summary(rank, None), summarize(H, y, rank)
    np.testing.assert_allclose(made.gram(), direct.gram(), atol=1e-9)
    assert (made.classes, made.counts) == (direct.classes, direct.counts)
    assert made.accounts.cut == pytest.approx(direct.accounts.cut, abs=1e-9)
    made.class_sums[:] = 7
    assert total.class_sums.sums.max() != 7


def test_added_arrays_are_copied():
    F = np.ones((8, 1), dtype=np.float32)
    exact = ExactSum(8)
    exact.add_factor(F)
    F[:] = 7
    assert exact.gram().max() == 1
    tensor = torch.ones((8, 1))
    on_torch = ExactSum(8, device="cpu")
    on_torch.add_factor(tensor)
    tensor[:] = 7
    assert on_torch.gram().max() == 1


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_gram_can_be_added_to_a_stack_and_a_factor_subtracted(device):
    exact, other = (ExactSum(8, "float64", device) for _ in range(2))
    exact.add_factor(np.ones((8, 1)))
    other.add_factor(np.sqrt(2) * np.eye(8))
    exact.add_sum(other)
    np.testing.assert_allclose(exact.gram(), np.ones((8, 8)) + 2 * np.eye(8))
    exact.add_factor(np.ones((8, 1)), -1.0)
    np.testing.assert_allclose(exact.gram(), 2 * np.eye(8), atol=1e-15)


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("widths", [[], [1, 1], [1, 3]])
def test_a_restored_sum_continues_bit_for_bit(device, widths):
    rng = np.random.default_rng(0)
    one, two = ExactSum(8, device=device), ExactSum(8, device=device)
    for w in widths:
        one.add_factor(rng.random((8, w)))
    two.restore(*copy.deepcopy(one.state()))
    more = rng.random((8, 1))
    one.add_factor(more)
    two.add_factor(more)
    assert (one.form, one.width) == (two.form, two.width)
    np.testing.assert_array_equal(one.gram(), two.gram())


@quick
@given(st.integers(1, 12), st.integers(0, 2**32 - 1), st.booleans())
def test_a_pickle_holds_the_sum_in_float32_and_no_row(n, seed, stack):
    rng = np.random.default_rng(seed)
    H = rng.standard_normal((n, 48)).astype(np.float32).astype(float)
    total = add_all(ExactSum(48, "float64", stack=stack), H, rng.integers(0, 3, n))
    blob = pickle.dumps(total)
    again = pickle.loads(blob)
    assert again.form == ("stack" if stack else "gram")
    assert len(blob) < (4 if stack else 8 * 48) * n * 48 + 48 * 48 * 8 * (not stack) + 5000
    scale = np.sum(H**2)
    np.testing.assert_allclose(again.gram(), H.T @ H, atol=1e-6 * scale)
    for lam in (1e-4, 1.0):  # B is rounded with G, so that even a small ridge changes nothing
        heads = [np.asarray(t.solve(Ridge.absolute(lam)).weights) for t in (total, again)]
        np.testing.assert_allclose(*heads, atol=1e-4 * np.abs(heads[0]).max())
    for row in H if stack and n > 1 else []:
        assert row.astype(np.float32).tobytes() not in blob
        assert row.tobytes() not in blob


@quick
@given(
    st.integers(1, 14),
    st.integers(1, 40),
    st.integers(1, 3),
    st.sampled_from([None, "cpu"]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_real_targets_in_parts_are_dense_sums_with_one_ridge(n, M, C, device, stack, seed):
    rng = np.random.default_rng(seed)
    H, Y, w = rng.standard_normal((n, M)), rng.standard_normal((n, C)), rng.random(n) + 0.1
    names, cut = tuple(range(C)), n // 2
    whole, first, second = (ExactSum(M, "float64", device, stack=stack) for _ in range(3))
    rows = H if device is None else torch.as_tensor(H)
    for total, part in ((whole, slice(0, n)), (first, slice(0, cut)), (second, slice(cut, n))):
        total.add_rows([(slice(None), rows[part])], names, Y[part], w[part])
    first.add_sum(second)
    for total in (whole, first):
        sums = total.class_sums
        np.testing.assert_allclose(total.gram(), (H.T * w) @ H, atol=1e-9)
        np.testing.assert_allclose(sums.sums, (H.T * w) @ Y, atol=1e-9)
        np.testing.assert_allclose(sums.totals, w @ Y, atol=1e-9)
        np.testing.assert_allclose(sums.target_squares, w @ Y**2, atol=1e-9)
    assert whole.best_ridge() == first.best_ridge()


def interrupted_at(n, monkeypatch):
    """Ctrl-C in the n-th addition to a Gram from now on, once."""
    real, calls = ExactSum.add_factor, []

    def add_factor(self, factor):
        calls.append(factor)
        if len(calls) == n:
            raise KeyboardInterrupt
        real(self, factor)

    monkeypatch.setattr(ExactSum, "add_factor", add_factor)


def test_rows_whose_addition_was_interrupted_are_never_counted_twice(monkeypatch):
    """Half of them are in the sum, so it is refused from then on."""
    rng = np.random.default_rng(0)
    H, y = rng.standard_normal((60, 32)), rng.integers(0, 3, 60)
    total = ExactSum(32)
    add_all(total, H, y)
    assert total.accounts.n_rows == 60
    with monkeypatch.context() as patch:
        interrupted_at(1, patch)
        with pytest.raises(KeyboardInterrupt):
            add_all(total, H, y)
    reads = [total.solve, total.gram, total.state, lambda: total.without([])]
    for use in [lambda: add_all(total, H, y), lambda: ExactSum(32).add_sum(total), *reads]:
        with pytest.raises(RuntimeError, match="interrupted; load the last saved state"):
            use()
