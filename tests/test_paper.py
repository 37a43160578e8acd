"""The paper's propositions, theorems and corollaries, against the algorithms as printed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedran import paper
from fedran.core.summarize import summarize
from helpers.core.reference import (
    ROUNDING,
    PaperServer,
    best_rank,
    features,
    federations,
    frobenius,
    onehot,
    quick,
    ridge,
    spectral,
)

ranks = st.integers(1, 20)
seeds = st.integers(0, 2**32 - 1)
SINGLE = 1e-4
"""Room for the server's float32, relative to the energy."""


def basis(rng, M, w):
    """V diag(sigma) of a random matrix."""
    V, sigma, _ = np.linalg.svd(rng.standard_normal((M, w)), full_matrices=False)
    return V * sigma


def played(federation, rank, r):
    """The summaries of a federation, merged as Algorithm 1 does."""
    total = None
    for task in federation.parts:
        sent = [summarize(H, y, rank, center=None) for H, y in task]
        total = paper.temporal(total, paper.spatial(sent, r), r)
    return total


@quick
@given(seeds, st.integers(1, 30), st.integers(2, 12), st.integers(1, 12))
def test_client_svd_is_the_thin_svd_and_what_summarize_sends(seed, n, M, r):
    H = features(np.random.default_rng(seed), n, M)
    F, lost = paper.client_svd(H, r)
    _, s, Vt = np.linalg.svd(H, full_matrices=False)
    k, room = min(r, len(s)), ROUNDING * s[0] ** 2
    np.testing.assert_allclose(F @ F.T, (Vt[:k].T * s[:k] ** 2) @ Vt[:k], atol=room)
    assert lost.spectral == pytest.approx(s[k] ** 2 if k < len(s) else 0, abs=room)
    np.testing.assert_array_equal(F, summarize(H, [0] * n, r, center=None).factor)


@quick
@given(seeds, st.integers(2, 12), st.integers(1, 12), st.integers(1, 12), ranks, st.booleans())
def test_proposition_2_the_merge_is_the_best_approximation_of_the_sum(seed, M, a, b, r, on_torch):
    rng = np.random.default_rng(seed)
    A, B = basis(rng, M, a), basis(rng, M, b)
    S = A @ A.T + B @ B.T
    given_ = (torch.as_tensor(A), torch.as_tensor(B)) if on_torch else (A, B)
    F, lost = paper.merge_svd(*given_, r)
    F = np.asarray(F)
    expected, values = best_rank(S, r)
    room = ROUNDING * values[0]
    assert F.shape[1] <= r
    np.testing.assert_allclose(F @ F.T, expected, atol=10 * room)
    assert lost.spectral == pytest.approx(values[r] if r < M else 0, abs=room)
    assert lost.frobenius == pytest.approx(np.linalg.norm(values[r:]), abs=room)
    assert lost.trace == pytest.approx(values[r:].sum(), abs=room)


def test_the_first_merge_returns_the_new_summary():
    F = basis(np.random.default_rng(0), 6, 3)
    kept, lost = paper.merge_svd(None, F, 3)
    np.testing.assert_array_equal(kept, F)
    assert lost.trace == 0
    with pytest.raises(ValueError, match="at least one client"):
        paper.spatial([], 3)


@quick
@given(federations(), ranks, ranks)
def test_the_server_is_algorithm_1(federation, rank, r):
    total, literal = played(federation, rank, r), PaperServer(federation.M, r)
    for task in federation.parts:
        literal.task([H for H, _ in task], rank)
    scale = total.accounts.energy
    np.testing.assert_allclose(total.gram(), literal.G, atol=SINGLE * scale)
    assert total.accounts.eps_G == pytest.approx(literal.eps_G, abs=SINGLE * scale)
    assert total.rank <= r


@quick
@given(federations())
def test_proposition_1_without_truncation_the_statistics_are_those_of_all_rows(federation):
    total = played(federation, None, federation.M)
    scale = total.accounts.energy
    np.testing.assert_allclose(total.gram(), federation.gram, atol=SINGLE * scale)
    B = federation.H.T @ onehot(federation.y, total.classes)
    np.testing.assert_allclose(total.class_sums, B, atol=ROUNDING * scale)


@quick
@given(federations(), ranks, ranks)
def test_theorem_1_and_the_relative_tail_bound_the_error_of_the_gram(federation, rank, r):
    total = played(federation, rank, r)
    error, acc = federation.gram - total.gram(), total.accounts
    room = SINGLE * acc.energy
    assert spectral(error) <= acc.eps_G + room
    assert frobenius(error) <= acc.eps_G_fro + room
    tail = paper.relative_tail_bound(acc.eta_loc, acc.eta_merge, acc.merges, acc.energy)
    assert np.trace(error) <= tail + room
    assert np.linalg.eigvalsh(error)[0] >= -room


def test_theorem_1_as_printed():
    """Two clients in one task, whose discarded eigenvalues are known."""
    a, b = np.diag([3.0, 2.0, 1.0]), np.diag([0.5, 0.0, 4.0])
    total = paper.spatial([summarize(H, [0] * 3, 2, center=None) for H in (a, b)], 2)
    kept = best_rank(best_rank(a @ a, 2)[0] + best_rank(b @ b, 2)[0], 2)
    bound = paper.gram_error_bound([1.0, 0.0], [kept[1][2]])
    assert total.accounts.eps_G == pytest.approx(bound, rel=1e-5)
    assert spectral(a @ a + b @ b - kept[0]) <= bound


@quick
@given(seeds, st.integers(2, 12), st.integers(0, 12), st.floats(1e-3, 10), st.booleans())
def test_the_head_is_the_ridge_in_the_retained_subspace(seed, M, r, lam, on_torch):
    rng = np.random.default_rng(seed)
    F, B = basis(rng, M, r), rng.standard_normal((M, 3))
    V, s = (F / np.linalg.norm(F, axis=0), np.linalg.norm(F, axis=0)) if r else (F, np.zeros(0))
    expected = V @ (V.T @ B / (s**2 + lam)[:, None])
    mixed = F @ np.linalg.qr(rng.standard_normal((F.shape[1],) * 2))[0]
    for columns in (F, mixed):  # their order and angles do not matter
        args = (torch.as_tensor(columns), torch.as_tensor(B)) if on_torch else (columns, B)
        found = paper.subspace_ridge(*args, lam)
        np.testing.assert_allclose(found.weights, expected, atol=1e-6 * (1 + np.abs(B).max() / lam))
        assert found.outside == pytest.approx(np.linalg.norm(B - V @ (V.T @ B)), abs=1e-6)


def test_the_subspace_is_the_numerical_range_of_a_deficient_factor():
    F = np.outer(np.arange(1.0, 5.0), [1.0, 2.0, 3.0])
    B = np.random.default_rng(0).random((4, 2))
    s = paper.subspace_ridge(F, B, 0.1)
    v = F[:, 0] / np.linalg.norm(F[:, 0])
    np.testing.assert_allclose(s.weights, np.outer(v, v @ B) / (np.sum(F**2) + 0.1))
    np.testing.assert_allclose(s.outside, np.linalg.norm(B - np.outer(v, v @ B)))


@quick
@given(federations(), ranks, ranks, st.sampled_from([1e-2, 1.0, 100.0]))
def test_theorem_2_and_the_corollary_bound_the_classifier(federation, rank, r, rho):
    total = played(federation, rank, r)
    lam = rho * total.accounts.mean_row_energy
    found = paper.subspace_ridge(total.factor, total.class_sums, lam)
    eps_G = spectral(federation.gram - total.gram())  # Theorem 1 without room for float32
    norm_B = np.linalg.norm(total.class_sums)
    full = ridge(federation.H, federation.y, total.classes, lam)
    eps_W = paper.weight_error_bound(eps_G, norm_B, found.outside, lam)
    eps_W += 1e-6 * np.linalg.norm(full)
    assert np.linalg.norm(full - found.weights) <= eps_W
    h = np.concatenate([federation.H, features(np.random.default_rng(0), 20, federation.M)])
    ours, theirs = h @ found.weights, h @ full
    errors = np.linalg.norm(ours - theirs, axis=1)
    assert (errors <= paper.score_error_bound(h, eps_W) * (1 + 1e-9)).all()
    alike = ours.argmax(axis=1) == theirs.argmax(axis=1)
    for scores in (theirs, ours):
        assert alike[paper.same_prediction(scores, h, eps_W)].all()


@quick
@given(st.integers(1, 5), seeds, st.floats(0, 1))
def test_no_change_within_the_bound_overturns_a_row_with_that_margin(C, seed, eps_W):
    rng = np.random.default_rng(seed)
    scores, h = rng.standard_normal((8, C)), rng.random((8, 3))
    noise = rng.standard_normal((8, C))
    noise *= (paper.score_error_bound(h, eps_W) / np.linalg.norm(noise, axis=1))[:, None]
    sure = paper.same_prediction(scores, h, eps_W)
    assert ((scores + noise).argmax(axis=1) == scores.argmax(axis=1))[sure].all()
    assert not paper.same_prediction(np.array([[1.0, 0.0]]), h[:1], np.inf).any()


def test_algorithm_1_from_features_to_head():
    rng = np.random.default_rng(0)
    stream = [
        [(features(rng, 15, 24), rng.integers(4, size=15)) for _ in range(3)] for _ in range(2)
    ]
    literal, B = PaperServer(24, 6), np.zeros((24, 4))
    for task in stream:
        literal.task([H for H, _ in task], 6)
        B += sum(H.T @ np.eye(4)[y] for H, y in task)
    values, V = np.linalg.eigh(literal.G)
    V, values = V[:, -6:], values[-6:]
    W = V @ (V.T @ B / (values + 1e-3)[:, None])
    head = paper.fedran(stream, 6)
    assert (head.diagnosis.lam, head.diagnosis.route) == (1e-3, "subspace")
    assert np.linalg.norm(head.weights - W) <= 1e-2 * np.linalg.norm(W)
