import copy
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedran
from fedran.core.accounts import Accounts
from fedran.core.aggregator import Aggregator
from fedran.core.errors import Refused
from fedran.core.fingerprint import Fingerprint
from fedran.core.ridge import Ridge
from fedran.core.summarize import summarize
from helpers.reference import features, federations, quick, ridge

MODES = [{}, {"server_rank": 3}, {"server_rank": 3, "order": "paper"}]


def summary(seed=0, n=6, M=8, labels=(0, 1, "a"), **options):
    rng = np.random.default_rng(seed)
    y = [labels[i % len(labels)] for i in range(n)]
    return summarize(features(rng, n, M), y, **options)


def snapshot(agg):
    return copy.deepcopy(agg.state())


def assert_unchanged(agg, before):
    now = agg.state()
    assert (now.values, now.absorbed) == (before.values, before.absorbed)
    assert now.arrays.keys() == before.arrays.keys()
    for name, array in before.arrays.items():
        valid = np.tril if name == "gram" else np.asarray
        np.testing.assert_array_equal(valid(now.arrays[name]), valid(array))


@quick
@given(
    federations(),
    st.randoms(),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from([None, "cpu"]),
)
def test_any_partition_in_any_order_gives_the_dense_ridge(
    federation, random, clients, tasks, dtype, device
):
    H, y = federation.H, federation.y
    keys = [(f"c{k}", f"t{t}") for k in range(clients) for t in range(tasks)]
    owner = [random.randrange(len(keys)) for _ in y]
    order = list(range(len(keys)))
    random.shuffle(order)
    agg = Aggregator(federation.M, dtype=dtype, device=device)
    for k in order:
        rows = [i for i, o in enumerate(owner) if o == k]
        part = summarize(H[rows], [y[i] for i in rows], None)
        agg.absorb(part, client=keys[k][0], task=keys[k][1])
    head = agg.solve().to(None)
    ints = sorted({c for c in y if isinstance(c, int)})
    strs = sorted({c for c in y if isinstance(c, str)})
    assert list(head.classes) == ints + strs
    lam = 0.03 * np.sum(H**2) / len(H)
    assert head.diagnosis.lam == pytest.approx(lam)
    full = ridge(H, y, head.classes, lam)
    room = 1e-6 if dtype == "float64" else 2e-2
    assert np.linalg.norm(head.weights - full) <= room * np.linalg.norm(full)
    assert agg.counts == {c: y.count(c) for c in head.classes}
    assert agg.accounts.n_rows == len(H)
    assert agg.accounts.cut <= 1e-9 * agg.accounts.energy


@quick
@given(federations(), st.integers(1, 8), st.randoms())
def test_order_of_arrival_matters_only_to_rounding_even_when_clients_truncate(
    federation, rank, random
):
    parts = [(summarize(H, y, rank), c, t) for c, t, H, y in federation.uploads]
    heads = []
    for _ in range(2):
        agg = Aggregator(federation.M, dtype="float64")
        for s, client, task in parts:
            agg.absorb(s, client=client, task=task)
        heads.append(agg.solve())
        random.shuffle(parts)
    assert heads[0].classes == heads[1].classes
    np.testing.assert_allclose(
        heads[0].weights, heads[1].weights, atol=1e-6 * np.abs(heads[0].weights).max()
    )
    assert heads[0].diagnosis.eps_W == pytest.approx(heads[1].diagnosis.eps_W, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torch_on_the_cpu_agrees_with_numpy(mode, dtype):
    heads = []
    for device in (None, "cpu"):
        agg = Aggregator(8, dtype=dtype, device=device, **mode)
        for i, task in enumerate("aabba"):
            agg.absorb(summary(i), client=f"c{i}", task=task)
        heads.append(agg.solve())
    a, b = heads
    assert isinstance(b.weights, torch.Tensor)
    np.testing.assert_allclose(b.weights, a.weights, atol=1e-4 * np.abs(a.weights).max())
    assert b.diagnosis.effective_rank == pytest.approx(a.diagnosis.effective_rank, rel=1e-4)
    assert b.diagnosis.condition == pytest.approx(a.diagnosis.condition, rel=1e-3)


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e-8, 1e8, 1e15, 1e25])
@pytest.mark.parametrize("M", [8, 200], ids=["gram", "stack"])
@pytest.mark.parametrize("mode", MODES)
def test_the_head_does_not_depend_on_the_scale_of_the_features(device, scale, M, mode):
    """W(s H) = W(H) / s under a relative ridge; what cannot be computed is refused in words."""
    H = features(np.random.default_rng(0), 12, M)
    y = [0, 1, "a"] * 4
    weights = []
    for s in (1.0, scale):
        agg = Aggregator(M, device=device, **mode)
        with np.errstate(all="ignore"):
            scaled = (H * s).astype(np.float32)
            try:
                agg.absorb(summarize(scaled, y, None), client="c", task="t")
                head = agg.solve()
            except ValueError:
                assert s in (1e-30, 1e-15, 1e25)
                return
        weights.append(np.asarray(head.to(None).weights, dtype=np.float64) * s)
    difference = np.linalg.norm(weights[1] - weights[0])
    assert difference <= 1e-2 * np.linalg.norm(weights[0])


@pytest.mark.parametrize("M", [8, 200], ids=["gram", "stack"])
@pytest.mark.parametrize("scale", [1e-100, 1e-60, 1e60, 1e100])
def test_float64_extremes_are_solved_or_refused_in_words(scale, M):
    H = features(np.random.default_rng(0), 12, M) * scale
    agg = Aggregator(M, dtype="float64")
    with np.errstate(all="ignore"):
        try:
            agg.absorb(summarize(H, [0, 1, "a"] * 4, None), client="c", task="t")
            head = agg.solve()
        except ValueError:
            return
    assert np.isfinite(head.weights).all()
    assert head.weights.any()


@pytest.mark.parametrize("mode", MODES)
class TestAbsorbing:
    def test_the_same_message_again_changes_nothing(self, mode):
        agg = Aggregator(8, **mode)
        assert agg.absorb(summary(), client="c", task="t") is True
        before = snapshot(agg)
        assert agg.absorb(summary(), client="c", task="t") is False
        assert_unchanged(agg, before)
        assert agg.absorb(summary(), client="c", task="u") is True
        assert agg.absorb(summary(), client="d", task="t") is True
        assert set(agg.absorbed) == {("c", "t"), ("c", "u"), ("d", "t")}

    def test_another_message_under_a_known_key_is_refused(self, mode):
        agg = Aggregator(8, **mode)
        agg.absorb(summary(0), client="c", task="t")
        before = snapshot(agg)
        with pytest.raises(Refused, match=r"client c, task t .*use a new task id"):
            agg.absorb(summary(1), client="c", task="t")
        assert_unchanged(agg, before)

    def test_a_digest_of_the_upload_decides_before_the_content(self, mode):
        agg = Aggregator(8, **mode)
        agg.absorb(replace(summary(0), digest="aa"), client="c", task="t")
        assert agg.absorbed == {("c", "t"): "aa"}
        assert not agg.absorb(replace(summary(0), digest="aa"), client="c", task="t")
        with pytest.raises(Refused, match="digest"):
            agg.absorb(replace(summary(0), digest="bb"), client="c", task="t")

    @pytest.mark.parametrize(
        "bad",
        [
            replace(summary(), sums=replace(summary().sums, counts=(9, 9, 9))),
            replace(summary(), accounts=Accounts(n_rows=6, energy=1.0)),
            replace(summary(), factor=summary().factor * np.nan),
            summary(M=9),
            summary(fingerprint=Fingerprint.of(d=1)),
        ],
        ids=["counts", "energy", "nan", "width", "fingerprint"],
    )
    def test_a_refused_summary_changes_nothing(self, mode, bad):
        agg = Aggregator(8, **mode)
        agg.absorb(summary(5), client="c", task="t")
        before = snapshot(agg)
        with pytest.raises(Refused):
            agg.absorb(bad, client="d", task="u")
        assert_unchanged(agg, before)
        agg.absorb(summary(6), client="d", task="u")

    @pytest.mark.parametrize("bad", ["", "a b", "a/b", "x" * 65, "é", "a\n", None, 3, b"a"])
    def test_ids_are_short_and_plain(self, mode, bad):
        agg = Aggregator(8, **mode)
        with pytest.raises(Refused, match=r"^client"):
            agg.absorb(summary(), client=bad, task="t")
        with pytest.raises(Refused, match=r"^task"):
            agg.absorb(summary(), client="c", task=bad)
        assert agg.absorbed == {}
        agg.absorb(summary(), client="A-z_0.9", task="x" * 64)

    def test_an_empty_summary_is_accepted_at_any_time_and_changes_no_head(self, mode):
        agg = Aggregator(8, **mode)
        nothing = summarize(np.zeros((0, 8)), [])
        agg.absorb(nothing, client="first", task="t")
        agg.absorb(summary(0), client="c", task="t")
        agg.absorb(summary(1), client="d", task="t")
        before = agg.solve().weights
        agg.absorb(nothing, client="last", task="t")
        np.testing.assert_array_equal(agg.solve().weights, before)

    def test_only_summaries_are_absorbed(self, mode):
        with pytest.raises(TypeError, match="decode"):
            Aggregator(8, **mode).absorb(b"blob", client="c", task="t")

    def test_what_was_absorbed_may_be_overwritten(self, mode):
        agg = Aggregator(8, **mode)
        s = summary(0, n=2)
        agg.absorb(s, client="c", task="t")
        before = snapshot(agg)
        s.factor[:] = 7
        s.class_sums[:] = 7
        assert_unchanged(agg, before)

    def test_solving_does_not_change_the_state(self, mode):
        agg = Aggregator(8, **mode)
        for i, task in enumerate("aab"):
            agg.absorb(summary(i), client=f"c{i}", task=task)
        before = snapshot(agg)
        first = agg.solve()
        assert_unchanged(agg, before)
        np.testing.assert_array_equal(agg.solve().weights, first.weights)
        agg.close_task()
        np.testing.assert_allclose(agg.solve().weights, first.weights, rtol=1e-5, atol=1e-6)

    def test_a_restored_aggregator_continues_bit_for_bit(self, mode):
        one = Aggregator(8, **mode)
        for i, task in enumerate("aab"):
            one.absorb(summary(i), client=f"c{i}", task=task)
        two = Aggregator(8, **mode)
        two.restore(snapshot(one))
        assert_unchanged(two, snapshot(one))
        for agg in (one, two):
            agg.absorb(summary(9, labels=("new", 7)), client="late", task="a")
        assert_unchanged(two, snapshot(one))
        np.testing.assert_array_equal(one.solve().weights, two.solve().weights)
        assert not two.absorb(summary(0), client="c0", task="a")

    def test_an_aggregator_without_labelled_rows_can_be_restored_but_not_solved(self, mode):
        agg = Aggregator(8, **mode)
        with pytest.raises(ValueError, match="nothing absorbed yet"):
            agg.solve()
        other = Aggregator(8, **mode)
        other.restore(agg.state())
        assert other.classes == ()
        unlabelled = summarize(np.eye(8), [None] * 8, unlabelled="factor")
        agg.absorb(unlabelled, client="c", task="t")
        with pytest.raises(ValueError, match="no labelled rows"):
            agg.solve()


class TestFingerprints:
    mine = Fingerprint.of(M=8, seed=0)

    def test_the_first_summary_binds_the_aggregator_to_its_fingerprint(self):
        agg = Aggregator(8)
        agg.absorb(summary(fingerprint=self.mine), client="c", task="t")
        assert agg.fingerprint == self.mine == agg.solve().fingerprint

    @pytest.mark.parametrize("bound", [True, False])
    def test_a_summary_with_another_fingerprint_is_refused_naming_the_fields(self, bound):
        agg = Aggregator(8, fingerprint=self.mine if bound else None)
        if not bound:
            agg.absorb(summary(fingerprint=self.mine), client="c", task="t")
        other = summary(1, fingerprint=Fingerprint.of(M=8, seed=1))
        with pytest.raises(Refused, match="seed is 0 here and 1 there"):
            agg.absorb(other, client="d", task="t")
        with pytest.raises(Refused, match="the other has none"):
            agg.absorb(summary(1), client="d", task="t")
        assert agg.absorb(summary(1, fingerprint=self.mine), client="d", task="t")

    def test_a_fingerprint_after_none_is_refused(self):
        agg = Aggregator(8)
        agg.absorb(summary(), client="c", task="t")
        with pytest.raises(Refused, match="this one has none"):
            agg.absorb(summary(1, fingerprint=self.mine), client="d", task="t")
        assert agg.fingerprint is None


class TestSolving:
    def test_dropping_the_complement_needs_a_server_rank(self):
        agg = Aggregator(8)
        agg.absorb(summary(), client="c", task="t")
        with pytest.raises(ValueError, match="server_rank"):
            agg.solve(complement="drop")
        with pytest.raises(ValueError, match="'keep' or 'drop'"):
            agg.solve(complement="half")

    @pytest.mark.parametrize("center", ["class", None])
    def test_the_dropped_head_lies_in_the_retained_subspace(self, center):
        agg = Aggregator(8, 3, dtype="float64")
        agg.absorb(summary(center=center), client="c", task="t")
        head = agg.solve(Ridge.absolute(1.0), complement="drop")
        agg.close_task()
        held = agg.state().arrays
        columns = [held["past"], held["past_sums"].T] if center else [held["past"]]
        V = np.linalg.qr(np.concatenate(columns, axis=1))[0]
        np.testing.assert_allclose(V @ (V.T @ head.weights), head.weights, atol=1e-6)
        assert head.diagnosis.route == "subspace"

    @pytest.mark.parametrize("lam", [2.5, 0.1])
    def test_the_diagnosis_says_how_it_went(self, lam):
        agg = Aggregator(8, dtype="float64")
        agg.absorb(summary(rank=2), client="c", task="t")
        d = agg.solve(Ridge.absolute(lam)).diagnosis
        G = summary(rank=2).gram()
        values = np.linalg.eigvalsh(G)
        assert d.lam == lam
        assert d.f == pytest.approx(agg.accounts.cut_fraction)
        assert d.n_rows == 6
        assert d.condition == pytest.approx((values[-1] + lam) / lam, rel=0.01)
        assert d.effective_rank == pytest.approx(values.sum() ** 2 / np.sum(values**2))
        assert d.residual < 1e-9
        assert "Cholesky in float64" in d.route

    def test_the_default_ridge_grows_with_the_share_that_was_cut(self):
        agg = Aggregator(8)
        agg.absorb(summary(rank=1), client="c", task="t")
        acc = agg.accounts
        assert (acc.n_rows, acc.parts) == (6, 1)
        expected = (0.03 + 0.07 * acc.cut / acc.energy * 6**0.5) * acc.energy / acc.n_rows
        assert agg.solve().diagnosis.lam == pytest.approx(expected)

    def test_a_cholesky_breakdown_is_in_the_diagnosis(self):
        agg = Aggregator(4)
        H = 1e4 * np.ones((3, 4), dtype=np.float32)
        agg.absorb(summarize(H + np.eye(4, dtype=np.float32)[:3], [0, 1, 2]), client="c", task="t")
        assert "Cholesky in float32 failed" in agg.solve(Ridge.absolute(1e-6)).diagnosis.route

    def test_rows_without_any_energy_can_be_solved(self):
        agg = Aggregator(4)
        agg.absorb(summarize(np.zeros((3, 4)), [0, 1, 2]), client="c", task="t")
        head = agg.solve()
        assert head.diagnosis.lam == 1.0
        assert not head.weights.any()

    def test_unlabelled_rows_shape_the_gram_only(self):
        H = features(np.random.default_rng(0), 10, 6)
        y = [0, 1] * 3 + [None] * 4
        agg = Aggregator(6, dtype="float64")
        agg.absorb(summarize(H, y, None, unlabelled="factor"), client="c", task="t")
        Y = np.array([[v == 0, v == 1] for v in y], dtype=float)
        W = np.linalg.solve(H.T @ H + np.eye(6), H.T @ Y)
        np.testing.assert_allclose(agg.solve(Ridge.absolute(1.0)).weights, W, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [0, -3, 2.0, True, "8", None])
def test_the_width_must_be_a_positive_integer(bad):
    with pytest.raises(ValueError, match="out_features must be a positive integer"):
        Aggregator(bad)


def test_the_width_must_be_that_of_the_fingerprint():
    with pytest.raises(Refused, match="fingerprint: expected M = 8, got 16"):
        Aggregator(8, fingerprint=Fingerprint.of(M=16))


def test_the_dtype_must_be_known():
    with pytest.raises(ValueError, match="'float32' or 'float64'"):
        Aggregator(8, dtype="float16")


def test_a_rank_bounded_state_takes_centred_or_uncentred_summaries_but_not_both():
    agg = Aggregator(8, 3)
    agg.absorb(summarize(np.zeros((0, 8)), []), client="empty", task="t")
    agg.absorb(summary(center=None), client="c", task="t")
    before = snapshot(agg)
    with pytest.raises(Refused, match="center: expected None, got 'class'"):
        agg.absorb(summary(1), client="d", task="t")
    assert_unchanged(agg, before)
    agg.absorb(summary(1, center=None), client="d", task="u")


def test_an_exact_sum_takes_centred_and_uncentred_summaries():
    H = features(np.random.default_rng(0), 12, 8)
    y = [0, 1, "a"] * 4
    agg = Aggregator(8, dtype="float64")
    agg.absorb(summarize(H[:6], y[:6], None), client="c", task="t")
    agg.absorb(summarize(H[6:], y[6:], None, center=None), client="d", task="t")
    full = ridge(H, y, agg.classes, 1.0)
    np.testing.assert_allclose(agg.solve(Ridge.absolute(1.0)).weights, full, rtol=1e-5, atol=1e-6)


def test_rank_bounds_and_print_follow_the_state():
    agg = Aggregator(8)
    assert agg.rank == 0
    agg.absorb(summary(rank=2, center=None), client="c", task="t")
    assert agg.rank == 2
    assert agg.bounds.spectral == agg.accounts.eps_G > 0
    agg.absorb(summary(1), client="d", task="t")
    agg.absorb(summary(2), client="e", task="t")
    assert agg.rank == 8
    agg.close_task()
    assert repr(agg) == "Aggregator(M=8, exact, uploads=3, rows=18, classes=3)"
    ranked = Aggregator(8, 3)
    ranked.absorb(summary(), client="c", task="t")
    ranked.close_task()
    assert ranked.rank == 3
    assert "server_rank=3" in repr(ranked)


class AbsorbsOnRelease:
    """A lock in whose place another thread absorbs as soon as it is released."""

    def __init__(self, agg, new):
        self.agg, self.new, self.inner = agg, new, agg.lock

    def __enter__(self):
        self.inner.acquire()

    def __exit__(self, *_):
        self.inner.release()
        new, self.new = self.new, None
        if new is not None:
            self.agg.absorb(new, client="other", task="t")


@pytest.mark.parametrize("mode", MODES)
def test_a_class_absorbed_right_after_a_solve_is_not_in_its_head(mode):
    agg = Aggregator(8, **mode)
    agg.absorb(summary(0), client="c", task="t")
    agg.lock = AbsorbsOnRelease(agg, summary(1, labels=("new",)))
    head = agg.solve()
    assert head.classes == (0, 1, "a")
    assert agg.classes == (0, 1, "a", "new")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("device", [None, "cpu"])
def test_threads_may_solve_absorb_new_classes_and_read_at_the_same_time(mode, device):
    M, sites = 48, 12
    rng = np.random.default_rng(0)
    parts = [summarize(features(rng, 9, M), [k, f"site-{k}", 99] * 3, 6) for k in range(sites)]
    agg = Aggregator(M, dtype="float64", device=device, **mode)
    agg.absorb(parts[0], client="0", task="t")
    alone = Aggregator(M, dtype="float64", device=device, **mode)
    done = threading.Event()

    def absorb(k):
        return agg.absorb(parts[k], client=str(k), task="t")

    def solve():
        heads = []
        while not done.is_set() or not heads:
            heads.append(agg.solve())
        return heads

    def read():
        seen = []
        while not done.is_set() or not seen:
            assert set(agg.counts) >= {0, "site-0", 99}
            assert agg.accounts.n_rows % 9 == 0
            assert agg.gram().shape == (M, M)
            assert f"M={M}" in repr(agg)
            seen.append((len(agg.classes), len(agg.absorbed), agg.bounds.trace))
        return seen

    with ThreadPoolExecutor(8) as pool:
        workers = [pool.submit(work) for work in (solve, solve, read, read)]
        assert all(pool.map(absorb, range(1, sites)))
        done.set()
        heads = [h for worker in workers[:2] for h in worker.result()]
        seen = [s for worker in workers[2:] for s in worker.result()]
    for head in heads:
        # Each part brings two classes and shares one: a head shows whole parts only.
        assert len(head.classes) % 2 == 1
        assert head.diagnosis.n_rows == 9 * (len(head.classes) // 2)
    assert max(classes for classes, _, _ in seen) <= 2 * sites + 1
    for client, task in agg.absorbed:
        alone.absorb(parts[int(client)], client=client, task=task)
    assert agg.classes == alone.classes
    assert agg.counts == alone.counts
    got, expected = (np.asarray(a.solve().to(None).weights) for a in (agg, alone))
    np.testing.assert_allclose(got, expected, atol=1e-6 * np.abs(expected).max())


def test_an_aggregator_survives_pickling():
    agg = Aggregator(8)
    agg.absorb(summary(0), client="c", task="t")
    again = pickle.loads(pickle.dumps(agg))
    np.testing.assert_array_equal(again.solve().weights, agg.solve().weights)
    assert again.absorb(summary(1), client="d", task="t")


def test_a_device_without_torch_is_noticed_by_the_constructor(monkeypatch):
    monkeypatch.setitem(sys.modules, "array_api_compat.torch", None)
    with pytest.raises(ImportError, match=r"install fedran's extra 'torch'"):
        fedran.Aggregator(3, device="cuda")
