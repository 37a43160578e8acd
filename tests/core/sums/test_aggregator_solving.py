"""Heads that an aggregator solves: scales, routes, diagnoses."""

import numpy as np
import pytest

from fedran.core.solve.ridge import Ridge
from fedran.core.summarize import summarize
from fedran.core.sums.aggregator import Aggregator
from helpers.core.reference import features
from helpers.core.samples import MODES, summary


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


class TestSolving:
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
