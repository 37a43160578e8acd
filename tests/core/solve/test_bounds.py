"""Theorem 2 in the paper's form and in ours, against the dense ridge."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedran.core.solve.head import make_head
from fedran.core.solve.ridge import Ridge, Solution
from fedran.core.summarize import summarize
from fedran.core.sums.accounts import Accounts
from fedran.core.sums.aggregator import Aggregator
from fedran.core.sums.class_sums import ClassSums
from helpers.core.reference import federations, quick, ridge

FLOAT32 = 4e-7
"""Heads are stored in float32."""

rhos = st.sampled_from([1e-2, 0.05, 1.0, 100.0])


def solved(federation, rank, rho, device=None):
    agg = Aggregator(federation.M, dtype="float64", device=device)
    for client, task, H, y in federation.uploads:
        agg.absorb(summarize(H, y, rank), client=client, task=task)
    lam = rho * agg.accounts.mean_row_energy
    head = agg.solve(Ridge.absolute(lam)).to(None)
    full = ridge(federation.H, federation.y, head.classes, lam)
    return head, full


@quick
@given(federations(), st.integers(1, 20), rhos, st.sampled_from([None, "cpu"]))
def test_theorem_2_bounds_the_distance_to_the_full_ridge(federation, rank, rho, device):
    head, full = solved(federation, rank, rho, device)
    distance = np.linalg.norm(head.weights - full)
    room = FLOAT32 * np.linalg.norm(full)
    d = head.diagnosis
    assert distance <= d.eps_W * (1 + 1e-9) + 1e-9 * np.linalg.norm(full)
    assert distance <= d.eps_W_paper * (1 + 1e-9) + room
    assert d.eps_W <= d.eps_W_paper * (1 + 1e-6) + room


@quick
@given(federations(), rhos)
def test_without_loss_the_bound_is_tight(federation, rho):
    head, full = solved(federation, None, rho)
    assert head.diagnosis.eps_W <= 1e-5 * np.linalg.norm(full)


def test_the_formulas_as_printed():
    acc = Accounts(eps_G=3.0, eps_B=2.0)
    weights, sums = np.full((4, 1), 4.0), ClassSums((0,), np.full((4, 1), 3.0), (1,))
    solution = Solution(weights, "", 1.0, 1.0, residual=0.5, outside=5.0)
    found = make_head(solution, sums, 2.0, acc).diagnosis  # ||W|| = 8, ||B|| = 6
    assert found.eps_W_paper == pytest.approx(3 * 6 / 4 + 5 / 2)
    assert found.eps_W == pytest.approx((3 * 8 + 2 + 0.5 + 5) / 2, rel=1e-6)


@quick
@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e-1), st.floats(0.1, 10))
def test_the_bound_covers_quantised_factors_and_sums(seed, noise, lam):
    """Our form with eps_B: any factor and sums within the accounts."""
    rng = np.random.default_rng(seed)
    H = rng.standard_normal((9, 6))
    B = rng.standard_normal((6, 2))
    F = H.T + noise * rng.standard_normal((6, 9))
    rough = B + noise * rng.standard_normal((6, 2))
    acc = Accounts(eps_G=np.linalg.norm(H.T @ H - F @ F.T, 2), eps_B=np.linalg.norm(B - rough))
    W = np.linalg.solve(F @ F.T + lam * np.eye(6), rough)
    full = np.linalg.solve(H.T @ H + lam * np.eye(6), B)
    solution = Solution(W, "", 1.0, 1.0, residual=0.0, outside=0.0)
    bound = make_head(solution, ClassSums((0, 1), rough, (5, 4)), lam, acc).diagnosis.eps_W
    assert np.linalg.norm(W - full) <= bound * (1 + 1e-9)
