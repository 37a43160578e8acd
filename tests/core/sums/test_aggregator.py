"""What an aggregator absorbs, refuses and keeps."""

import copy
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedran
from fedran.core.errors import Refused
from fedran.core.fingerprint import Fingerprint
from fedran.core.summarize import summarize
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.aggregator import Aggregator
from helpers.core.reference import federations, quick, ridge
from helpers.core.samples import MODES, summary


def snapshot(agg):
    return copy.deepcopy((*agg.sums.state(), agg.absorbed))


def assert_unchanged(agg, before):
    values, arrays, absorbed = (*agg.sums.state(), agg.absorbed)
    assert (values, absorbed) == (before[0], before[2])
    assert arrays.keys() == before[1].keys()
    for name, array in before[1].items():
        valid = np.tril if name == "gram" else np.asarray
        np.testing.assert_array_equal(valid(arrays[name]), valid(array))


@pytest.mark.filterwarnings("ignore:.*equals that of:UserWarning")  # equal parts of equal rows
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
def test_torch_on_the_cpu_agrees_with_numpy(mode):
    heads = []
    for device in (None, "cpu"):
        agg = Aggregator(8, device=device, **mode)
        for i, task in enumerate("aabba"):
            agg.absorb(summary(i), client=f"c{i}", task=task)
        heads.append(agg.solve())
    a, b = heads
    assert isinstance(b.weights, torch.Tensor)
    np.testing.assert_allclose(b.weights, a.weights, atol=1e-4 * np.abs(a.weights).max())
    assert b.diagnosis.effective_rank == pytest.approx(a.diagnosis.effective_rank, rel=1e-4)
    assert b.diagnosis.condition == pytest.approx(a.diagnosis.condition, rel=1e-3)


@pytest.mark.parametrize("mode", MODES)
class TestAbsorbing:
    def test_the_same_message_again_changes_nothing(self, mode):
        agg = Aggregator(8, **mode)
        assert agg.absorb(summary(), client="c", task="t") is True
        before = snapshot(agg)
        assert agg.absorb(summary(), client="c", task="t") is False
        assert_unchanged(agg, before)

    def test_equal_messages_under_two_keys_count_twice_with_a_warning(self, mode):
        agg = Aggregator(8, **mode)
        agg.absorb(summary(), client="c", task="t")
        with pytest.warns(UserWarning, match="message of d, task t equals that of c, task t"):
            assert agg.absorb(summary(), client="d", task="t") is True
        assert agg.accounts.n_rows == 2 * summary().accounts.n_rows
        assert set(agg.absorbed) == {("c", "t"), ("d", "t")}

    def test_a_new_label_that_is_like_a_known_one_is_a_warning(self, mode):
        agg = Aggregator(8, **mode)
        agg.absorb(summary(0, labels=(0, 1, "cat")), client="c", task="t")
        with pytest.warns(UserWarning, match="0 and '0', 'cat' and 'Cat' may be .*d") as found:
            agg.absorb(summary(1, labels=("0", 1, "Cat")), client="d", task="t")
        assert len(found) == 1
        agg.absorb(summary(2, labels=("0", "cat")), client="e", task="t")  # nothing new

    def test_another_message_under_a_known_key_is_refused(self, mode):
        agg = Aggregator(8, **mode)
        agg.absorb(summary(0), client="c", task="t")
        before = snapshot(agg)
        with pytest.raises(Refused, match=r"client c, task t .*use a new task id"):
            agg.absorb(summary(1), client="c", task="t")
        assert_unchanged(agg, before)

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

    @pytest.mark.parametrize("bad", ["", "a  b", " a", "a/b", "x" * 65, "é", "a\n", None, 3, b"a"])
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

    def test_a_restored_aggregator_continues_bit_for_bit(self, mode):
        one = Aggregator(8, **mode)
        for i, task in enumerate("aab"):
            one.absorb(summary(i), client=f"c{i}", task=task)
        two = Aggregator(8, **mode)
        two.restore(*snapshot(one))
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
        other.restore(*snapshot(agg))
        assert other.classes == ()
        unlabelled = summarize(np.eye(8), [None] * 8)
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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"out_features": 2.0}, "out_features must be a positive integer"),
        ({"dtype": "float16"}, "'float32' or 'float64'"),
        ({"fingerprint": Fingerprint.of(M=16)}, "expected M = 8, got 16"),
    ],
)
def test_wrong_parameters_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        Aggregator(**{"out_features": 8, **options})
