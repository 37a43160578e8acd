import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedran.core.summarize import summarize
from helpers.core.reference import ROUNDING, best_rank, features, frobenius, onehot, quick, spectral

centers = st.sampled_from(["class", None])
sizes = st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(0, 2**32 - 1))


def rows(n, M, seed=0, decay=0.1):
    rng = np.random.default_rng(seed)
    return features(rng, n, M, decay), [("a", "b", 3)[i] for i in rng.integers(3, size=n)]


@quick
@given(sizes, st.integers(1, 25), centers)
def test_the_factor_is_the_truncated_svd_of_the_rows_minus_their_class_means(size, rank, center):
    H, y = rows(*size)
    s = summarize(H, y, rank, center=center)
    G = H.T @ H
    Y = onehot(y, s.classes)
    between = H.T @ Y @ np.diag(1 / Y.sum(axis=0)) @ Y.T @ H if center else 0 * G
    _, values = best_rank(G - between, rank)
    room = ROUNDING * s.accounts.energy
    rest = values[rank:]
    assert spectral(G - s.gram()) == pytest.approx(rest[0] if rest.size else 0, abs=room)
    assert frobenius(G - s.gram()) == pytest.approx(np.linalg.norm(rest), abs=room)
    singular = np.sqrt(values[: s.rank])
    np.testing.assert_allclose(s.sigma, singular, atol=1e-6 * np.sqrt(s.accounts.energy))
    assert s.accounts.eps_G == pytest.approx(rest[0] if rest.size else 0, abs=room)
    assert s.accounts.eps_G_fro == pytest.approx(np.linalg.norm(rest), abs=room)
    assert s.accounts.cut == pytest.approx(rest.sum(), abs=room)
    assert s.accounts.eta_loc == s.accounts.cut_fraction
    np.testing.assert_allclose(s.class_sums, H.T @ Y, atol=1e-9)
    assert s.class_sums.dtype == np.float64


@quick
@given(sizes, st.sampled_from([1, 3, None]), centers)
def test_float32_and_tensors_agree_with_float64(size, rank, center):
    H, y = rows(*size)
    H = H.astype(np.float32).astype(np.float64)
    s = summarize(H, y, rank, center=center)
    for kind in (np.float32, torch.float32, torch.float64):
        X = H.astype(kind) if kind is np.float32 else torch.as_tensor(H).to(kind)
        other = summarize(X, y, rank, center=center)
        assert other.factor.dtype == X.dtype
        single = kind is not torch.float64
        room = (1e-4 if single else ROUNDING) * s.accounts.energy
        assert (other.classes, other.counts) == (s.classes, s.counts)
        assert other.accounts.energy == pytest.approx(s.accounts.energy, rel=1e-5)
        assert other.accounts.eps_G == pytest.approx(s.accounts.eps_G, abs=room)
        assert other.accounts.cut == pytest.approx(s.accounts.cut, abs=room)
        assert spectral(H.T @ H - other.to(None).gram()) <= s.accounts.eps_G + room
        np.testing.assert_allclose(other.to(None).class_sums, s.class_sums, rtol=1e-4, atol=1e-4)


def test_no_rows_make_an_empty_summary():
    s = summarize(np.zeros((0, 4)), []).validate()
    assert (s.rank, s.out_features, s.classes, s.accounts.n_rows) == (0, 4, (), 0)
    assert s.class_sums.shape == (4, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "H",
    [
        np.ones((1, 5)),
        np.ones((7, 5)),
        np.repeat(np.random.default_rng(0).random((2, 5)), 6, axis=0),
        np.zeros((4, 5)),
        np.eye(5)[[0, 0, 0, 1]],
        np.random.default_rng(1).random((50, 3)),
    ],
    ids=["one row", "constant", "duplicates", "zeros", "few columns", "n > M"],
)
@pytest.mark.parametrize("rank", [1, 3, 100, None])
def test_degenerate_rows_are_summarized_within_the_accounts(H, dtype, rank):
    H = H.astype(dtype)
    s = summarize(H, [0] * len(H), rank)
    error = H.T.astype(float) @ H - s.gram().astype(float)
    room = (1e-5 if dtype is np.float32 else ROUNDING) * (1 + s.accounts.energy)
    assert spectral(error) <= s.accounts.eps_G + room
    assert s.rank <= np.linalg.matrix_rank(H)
    assert np.isfinite(s.factor).all()
    s.validate()


@pytest.mark.parametrize("scale", [1e25, 1e-30, 1e-22])
@pytest.mark.parametrize("rank", [2, None])
def test_extreme_float32_values_make_a_valid_summary(scale, rank):
    H, y = rows(12, 10)
    unit = summarize(H, y, rank)
    with np.errstate(over="ignore"):
        s = summarize((H * scale).astype(np.float32), y, rank).validate()
    np.testing.assert_allclose(s.sigma / scale, unit.sigma[: s.rank], rtol=1e-3)
    assert s.accounts.energy / scale**2 == pytest.approx(unit.accounts.energy, rel=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_are_not_finite_are_refused_by_number(bad, dtype):
    H = np.ones((6, 4), dtype=dtype)
    H[4, 2] = bad
    with np.errstate(invalid="ignore"), pytest.raises(ValueError, match="first in row 4;"):
        summarize(H, [0] * 6)


def test_the_row_number_counts_unlabelled_rows_too():
    H = np.ones((4, 3))
    H[3] = np.nan
    with pytest.raises(ValueError, match="first in row 3;"):
        summarize(H, [None, 0, 0, 0])


def test_rows_without_a_label_are_left_out():
    H, y = rows(9, 6)
    y = [None if i % 3 == 0 else label for i, label in enumerate(y)]
    keep = [label is not None for label in y]
    labelled = summarize(H[keep], [label for label in y if label is not None], None)
    for found in (summarize(H, y, None), summarize(torch.as_tensor(H), y, None).to(None)):
        np.testing.assert_allclose(found.gram(), labelled.gram())
        np.testing.assert_allclose(found.class_sums, labelled.class_sums)
        assert (found.counts, found.accounts.n_rows) == (labelled.counts, 6)
    assert summarize(np.eye(3), [None] * 3).accounts.n_rows == 0


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="rank must be"):
        summarize(np.eye(3), [0, 1, 2], rank=0)
    with pytest.raises(ValueError, match="center must be 'class' or None, got 'mean'"):
        summarize(np.eye(3), [0, 1, 2], center="mean")
    with pytest.raises(ValueError, match="3 rows, 2 labels"):
        summarize(np.eye(3), [0, 1])
    with pytest.raises(ValueError, match="H must be a matrix"):
        summarize(np.ones(3), [0, 1, 2])
