"""Threads that solve, absorb and read one aggregator at the same time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedran.core.summarize import summarize
from fedran.core.sums.aggregator import Aggregator
from helpers.core.reference import features
from helpers.core.samples import MODES, summary


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


@pytest.mark.parametrize("device", [None, "cpu"])
def test_threads_may_solve_absorb_new_classes_and_read_at_the_same_time(device):
    M, sites = 48, 12
    rng = np.random.default_rng(0)
    parts = [summarize(features(rng, 9, M), [k, f"{k} only", 99] * 3, 6) for k in range(sites)]
    agg = Aggregator(M, dtype="float64", device=device)
    agg.absorb(parts[0], client="0", task="t")
    alone = Aggregator(M, dtype="float64", device=device)
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
            assert set(agg.counts) >= {0, "0 only", 99}
            assert agg.accounts.n_rows % 9 == 0
            assert agg.gram().shape == (M, M)
            assert f"M={M}" in repr(agg)
            seen.append((len(agg.classes), len(agg.absorbed), agg.accounts.cut))
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
