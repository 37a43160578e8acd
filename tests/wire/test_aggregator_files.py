"""An aggregator that was saved and loaded continues bit for bit."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import fedran
from helpers.wire.messages import AGGREGATORS, CENTER_OF, half_done, summary


def upload(seed: int, precision: str = "mixed", **options) -> fedran.Summary:
    return fedran.decode(fedran.encode(summary(n=20, M=32, seed=seed, **options), precision))


def continued(agg: fedran.Aggregator, form: str) -> tuple[bytes, bytes]:
    """Weights and state after a late upload, one for the open task and a new task."""
    for seed, (client, task) in enumerate((("c8", "t0"), ("c9", "t1"), ("c9", "t2")), 9):
        s = upload(seed, "float32", labels=("new", 3), center=CENTER_OF.get(form, "class"))
        agg.absorb(s, client=client, task=task)
    return agg.solve().weights.tobytes(), fedran.encode(agg)


@pytest.mark.parametrize("form", AGGREGATORS)
def test_a_loaded_aggregator_continues_bit_for_bit(form, tmp_path):
    agg = half_done(form)
    assert agg.sums.state()[0]["form"] == ("stack" if form == "stack" else "gram")
    assert fedran.save(agg, tmp_path / "a") == (tmp_path / "a").stat().st_size
    loaded = fedran.load(tmp_path / "a")
    assert type(loaded) is fedran.Aggregator
    assert (loaded.fingerprint, loaded.absorbed) == (agg.fingerprint, agg.absorbed)
    assert fedran.encode(loaded) == fedran.encode(agg)
    assert loaded.solve().weights.tobytes() == agg.solve().weights.tobytes()
    never_saved = continued(half_done(form), form)
    assert continued(loaded, form) == continued(agg, form) == never_saved


@pytest.mark.parametrize("field", ["eps_G", "eps_G_fro", "eps_quant"])
def test_totals_beyond_the_limits_of_one_message_can_be_saved_and_loaded(field, tmp_path):
    base = fedran.summarize(np.eye(8), list(range(8)), 8)
    agg = fedran.Aggregator(8)
    for i in range(3):
        accounts = replace(base.accounts, **{field: 9e99}, n_rows=2**40 + i)
        agg.absorb(replace(base, accounts=accounts), client=f"c{i}", task="t")
    fedran.save(agg, tmp_path / "a")
    assert fedran.load(tmp_path / "a").accounts == agg.accounts


def test_a_torch_aggregator_continues_after_a_load(tmp_path):
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    agg = fedran.Aggregator(16, device="cpu")
    for i in range(3):
        s = fedran.summarize(rng.random((30, 16)), rng.integers(0, 3, 30), 12)
        agg.absorb(s, client=f"c{i}", task="t")
    fedran.save(agg, tmp_path / "a")
    loaded = fedran.load(tmp_path / "a", device="cpu")
    first, second = agg.solve(), loaded.solve()
    assert second.diagnosis.residual == pytest.approx(first.diagnosis.residual, abs=1e-5)
    assert second.diagnosis.condition == pytest.approx(first.diagnosis.condition, rel=1e-4)
    np.testing.assert_allclose(second.to(None).weights, first.to(None).weights, atol=1e-5)
    on_numpy = fedran.load(tmp_path / "a").solve().weights
    np.testing.assert_allclose(on_numpy, first.to(None).weights, atol=1e-4)


def test_a_state_written_during_a_solve_is_the_state():
    rng = np.random.default_rng(0)
    agg = fedran.Aggregator(300)
    for i in range(4):
        agg.absorb(fedran.summarize(rng.random((90, 300)), [i] * 90, None), client="c", task=str(i))
    before = fedran.encode(agg)
    with ThreadPoolExecutor(3) as pool:
        solves = [pool.submit(agg.solve) for _ in range(20)]
        written = [pool.submit(fedran.encode, agg) for _ in range(20)]
        assert all(w.result() == before for w in written)
        weights = [s.result().weights for s in solves]
    for other in weights[1:]:
        np.testing.assert_allclose(other, weights[0], atol=1e-5 * np.abs(weights[0]).max())
