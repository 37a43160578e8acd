import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedran.core.fingerprint import Fingerprint
from fedran.core.summarize import Summarizer, summarize
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
@given(sizes, st.sampled_from([1, 3, 0.9, 0.5, None]), centers)
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


@quick
@given(sizes, st.floats(0.05, 1.0), centers)
def test_an_energy_share_is_kept(size, share, center):
    s = summarize(*rows(*size), share, center=center)
    assert 1 - s.accounts.cut_fraction >= share - 1e-9


def test_no_rows_make_an_empty_summary():
    for s in (summarize(np.zeros((0, 4)), []), Summarizer(4).finish()):
        assert (s.rank, s.out_features, s.classes, s.accounts.n_rows) == (0, 4, (), 0)
        assert s.class_sums.shape == (4, 0)
        s.validate()


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
@pytest.mark.parametrize("rank", [1, 3, 100, 0.99, None])
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
    with np.errstate(invalid="ignore"), pytest.raises(ValueError, match="first in row 4;"):
        Summarizer(4).update(H, [0] * 6)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_row_number_counts_unlabelled_rows_too(streaming):
    H = np.ones((4, 3))
    H[3] = np.nan
    run = Summarizer(3).update if streaming else summarize
    with pytest.raises(ValueError, match="first in row 3;"):
        run(H, [None, 0, 0, 0])


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
    with pytest.raises(ValueError, match="H must have 3 columns"):
        Summarizer(3).update(np.ones((2, 4)), [0, 1])


class TestSummarizer:
    @quick
    @given(
        sizes,
        st.lists(st.integers(1, 15), min_size=1, max_size=6),
        st.integers(7, 16),
        st.integers(1, 20),
        st.sampled_from([np.asarray, torch.as_tensor]),
        centers,
    )
    def test_streaming_agrees_with_summarize_within_the_accounts(
        self, size, cuts, capacity, rank, kind, center
    ):
        H, y = rows(*size)
        M = H.shape[1]
        rank = min(rank, capacity // 2)
        need = 24 * M * capacity + 48 * capacity**2
        streaming = Summarizer(M, rank, center=center, max_bytes=need)
        assert streaming.capacity == capacity
        start = 0
        for n in [*cuts, len(H)]:
            streaming.update(kind(H[start : start + n]), y[start : start + n])
            start += n
        s, once = streaming.finish().to(None), summarize(H, y, rank, center=center)
        room = ROUNDING * once.accounts.energy
        error = H.T @ H - s.gram()
        assert spectral(error) <= s.accounts.eps_G + room
        assert frobenius(error) <= s.accounts.eps_G_fro + room
        assert np.trace(error) == pytest.approx(s.accounts.cut, abs=room)
        both = s.accounts.eps_G + once.accounts.eps_G
        assert spectral(once.gram() - s.gram()) <= both + room
        assert s.accounts.cut <= s.accounts.eta_loc * s.accounts.energy + room
        assert s.accounts.energy == pytest.approx(once.accounts.energy)
        assert (s.classes, s.counts) == (once.classes, once.counts)
        np.testing.assert_allclose(s.class_sums, once.class_sums, atol=1e-9)
        s.validate()

    def test_with_room_for_twice_m_rows_nothing_is_lost(self):
        H, y = rows(300, 8)
        streaming = Summarizer(8, None, max_bytes=24 * 8 * 16 + 48 * 16**2)
        for i in range(0, 300, 9):
            streaming.update(H[i : i + 9], y[i : i + 9])
        s = streaming.finish()
        np.testing.assert_allclose(s.gram(), H.T @ H, rtol=1e-9)
        assert s.accounts.cut <= 1e-9 * s.accounts.energy
        assert "compressions" in s.route

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("batch", [10, 1500])
    def test_streaming_stays_below_max_bytes(self, dtype, batch):
        H, y = rows(1500, 100)
        H = H.astype(dtype)
        ceiling = 400_000
        streaming = Summarizer(100, 20, max_bytes=ceiling)
        tracemalloc.start()
        for i in range(0, len(H), batch):
            streaming.update(H[i : i + batch], y[i : i + batch])
        streaming.finish()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= ceiling

    def test_the_callers_buffer_may_be_reused(self):
        H, y = rows(6, 4)
        buffer = np.empty((3, 4))
        streaming = Summarizer(4, None)
        for i in (0, 3):
            buffer[:] = H[i : i + 3]
            streaming.update(buffer, y[i : i + 3])
        np.testing.assert_allclose(streaming.finish().gram(), H.T @ H)

    def test_more_batches_may_follow_finish(self):
        H, y = rows(10, 4)
        streaming = Summarizer(4, None, fingerprint=Fingerprint.of(d=1))
        streaming.update(H[:5], y[:5])
        first = streaming.finish()
        streaming.update(H[5:], y[5:])
        np.testing.assert_allclose(first.gram(), H[:5].T @ H[:5])
        np.testing.assert_allclose(streaming.finish().gram(), H.T @ H)
        assert streaming.finish().content_digest() == streaming.finish().content_digest()
        assert first.fingerprint == Fingerprint.of(d=1)

    @pytest.mark.parametrize(
        ("H", "y"),
        [
            (np.full((2, 4), np.nan), [0, 1]),
            (np.ones((2, 4)) * 1e200, [0, 1]),
            (np.ones((2, 4)) * 1e-200, [0, 1]),
            (np.ones((2, 4)), [0.5, 1]),
            (np.ones((2, 4)), [0]),
            (np.ones((2, 5)), [0, 1]),
            (np.ones((2, 4), dtype=complex), [0, 1]),
        ],
        ids=["nan", "huge", "tiny", "label", "length", "width", "complex"],
    )
    def test_a_refused_batch_changes_nothing(self, H, y):
        good, labels = rows(5, 4)
        streaming = Summarizer(4, 3)
        streaming.update(good, labels)
        before = streaming.finish().content_digest()
        with np.errstate(over="ignore"), pytest.raises((ValueError, TypeError)):
            streaming.update(H, y)
        assert streaming.finish().content_digest() == before

    def test_a_batch_of_more_classes_than_the_memory_can_center_is_refused(self):
        streaming = Summarizer(3, 1, max_bytes=24 * 3 * 4 + 48 * 16)
        with pytest.raises(ValueError, match=r"2 classes needs room for 5 rows.* allows 4"):
            streaming.update(np.eye(3), [0, 1, 1])
        assert streaming.finish().accounts.n_rows == 0

    @pytest.mark.parametrize("rank", [100, np.int64(100)])
    def test_a_ceiling_below_the_rank_is_refused(self, rank):
        with pytest.raises(ValueError, match="raise max_bytes or lower rank"):
            Summarizer(1000, rank, max_bytes=1_000_000)
        with pytest.raises(ValueError, match="raise max_bytes"):
            Summarizer(1000, None, max_bytes=10)


def test_a_share_of_the_energy_is_met_or_refused_when_streaming():
    rng = np.random.default_rng(0)
    H = rng.standard_normal((2000, 128))
    y = np.zeros(2000, dtype=int)

    def stream(max_bytes, rank):
        s = Summarizer(128, rank=rank, max_bytes=max_bytes)
        for batch in np.array_split(np.arange(2000), 9):
            s.update(H[batch], y[batch])
        return s.finish()

    assert stream(2**26, 0.6).accounts.cut_fraction <= 0.4 + 1e-9
    with pytest.raises(ValueError, match="raise max_bytes"):
        stream(200_000, 0.95)
