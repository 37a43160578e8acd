"""Theorem 2 in the paper's form and in ours, and the margin corollary, against the dense ridge."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedran.core.accounts import Accounts
from fedran.core.aggregator import Aggregator
from fedran.core.bounds import certified_rows, gram_bounds, paper_weight_bound, weight_bound
from fedran.core.ridge import Ridge
from fedran.core.summarize import summarize
from helpers.reference import features, federations, quick, ridge

FLOAT32 = 4e-7
"""Heads are stored in float32."""

servers = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"server_rank": st.integers(1, 20), "order": st.sampled_from(["flat", "paper"])}
    ),
)
rhos = st.sampled_from([1e-2, 0.05, 1.0, 100.0])


def aggregate(federation, rank, device=None, **server):
    agg = Aggregator(federation.M, dtype="float64", device=device, **server)
    for client, task, H, y in federation.uploads:
        agg.absorb(summarize(H, y, rank), client=client, task=task)
    return agg


def solved(federation, rank, server, rho, drop, device=None):
    agg = aggregate(federation, rank, device, **server)
    lam = rho * agg.accounts.mean_row_energy
    complement = "drop" if drop and server else "keep"
    head = agg.solve(Ridge.absolute(lam), complement=complement).to(None)
    full = ridge(federation.H, federation.y, head.classes, lam)
    return head, full


@quick
@given(federations(), st.integers(1, 20), servers, rhos, st.booleans())
def test_theorem_2_bounds_the_distance_to_the_full_ridge(federation, rank, server, rho, drop):
    head, full = solved(federation, rank, server, rho, drop)
    distance = np.linalg.norm(head.weights - full)
    room = FLOAT32 * np.linalg.norm(full)
    d = head.diagnosis
    assert distance <= d.eps_W * (1 + 1e-9) + 1e-9 * np.linalg.norm(full)
    assert distance <= d.eps_W_paper * (1 + 1e-9) + room
    assert d.eps_W <= d.eps_W_paper * (1 + 1e-6) + room


@quick
@given(federations(), servers, rhos)
def test_without_loss_the_certificate_is_tight(federation, server, rho):
    if server:
        server["server_rank"] = federation.M
    head, full = solved(federation, None, server, rho, drop=False)
    assert head.diagnosis.eps_W <= 1e-5 * np.linalg.norm(full)


@quick
@given(
    federations(),
    st.sampled_from([None, 2, 5, 12]),
    servers,
    rhos,
    st.booleans(),
    st.sampled_from([None, "cpu"]),
)
def test_certified_rows_agree_with_the_full_ridge(federation, rank, server, rho, drop, device):
    head, full = solved(federation, rank, server, rho, drop, device)
    X = np.concatenate([federation.H, features(np.random.default_rng(0), 20, federation.M)])
    scores, exact = head.scores(X), X @ full
    norms = np.linalg.norm(X, axis=1)
    assert (np.linalg.norm(scores - exact, axis=1) <= norms * head.diagnosis.eps_W * 1.0001).all()
    sure = head.certify(X)
    assert (scores.argmax(axis=1) == exact.argmax(axis=1))[sure].all()


def test_some_rows_are_certified_without_loss_and_none_when_all_is_cut():
    rng = np.random.default_rng(0)
    H = np.repeat(np.eye(6), 5, axis=0) + 0.1 * rng.random((30, 6))
    y = [i // 5 for i in range(30)]
    exact, cut = Aggregator(6, dtype="float64"), Aggregator(6, dtype="float64")
    exact.absorb(summarize(H, y, None), client="a", task="t")
    cut.absorb(summarize(H, y, 1), client="a", task="t")
    assert exact.solve().certify(H).all()
    assert not cut.solve().certify(H).any()


@quick
@given(st.integers(1, 5), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_no_change_within_eps_w_overturns_a_certified_row(C, seed, eps_W):
    rng = np.random.default_rng(seed)
    scores, norms = rng.standard_normal((8, C)), rng.random(8)
    noise = rng.standard_normal((8, C))
    noise *= (norms * eps_W / np.linalg.norm(noise, axis=1))[:, None]
    sure = certified_rows(scores, norms, eps_W)
    assert ((scores + noise).argmax(axis=1) == scores.argmax(axis=1))[sure].all()
    assert sure.all() or C > 1
    assert not certified_rows(np.zeros((3, 2)), np.ones(3), 0.0).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_is_certified_by_a_bound_that_is_not_finite(bad):
    assert not certified_rows(np.array([[1.0, 0.0]]), np.ones(1), bad).any()


def test_the_formulas_as_printed():
    acc = Accounts(
        energy=100.0, cut=7.0, eps_G=3.0, eps_G_fro=4.0, eps_quant=1.0, eps_B=2.0,
        eta_loc=0.1, eta_merge=0.2, merges=3,
    )  # fmt: skip
    b = gram_bounds(acc)
    assert (b.spectral, b.frobenius, b.trace) == (3.0, 4.0, 8.0)
    assert b.relative_tail == pytest.approx((0.1 + 0.2 * 3) * 100 + 1)
    assert paper_weight_bound(acc, 2.0, 8.0, 5.0) == pytest.approx(3 * 8 / 4 + 5 / 2)
    assert weight_bound(acc, 2.0, 8.0, 0.5, 5.0) == pytest.approx((3 * 8 + 2 + 0.5 + 5) / 2)


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
    bound = weight_bound(acc, lam, np.linalg.norm(W))
    assert np.linalg.norm(W - full) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("complement", ["keep", "drop"])
def test_our_form_is_attained(complement):
    """One direction is cut and holds all of B: for lambda >> eps_G the bound is an equality."""
    s = summarize(np.diag([3.0, 1.0]), [None, 0], 1, center=None, unlabelled="factor")
    agg = Aggregator(2, 1, dtype="float64")
    agg.absorb(s, client="c", task="t")
    lam = 1000.0
    head = agg.solve(Ridge.absolute(lam), complement=complement)
    distance = np.linalg.norm(head.weights - np.array([[0.0], [1 / (1 + lam)]]))
    assert distance <= head.diagnosis.eps_W <= 1.002 * distance
