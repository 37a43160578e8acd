"""Aggregators lift mixtures to random features: exactness, order, replay, and refusals."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedran
from fedran.core.condense import condense
from fedran.core.errors import Refused
from fedran.core.sums import exact_sum
from fedran.core.sums.aggregator import Aggregator
from fedran.core.sums.exact_sum import ExactSum
from helpers.core.reference import quick
from helpers.core.samples import M, phi_of, rows, with_part

KINDS = ("cosine", "hellinger", "relu")


def lifted(m, phi, **options):
    agg = Aggregator(phi.out_features, fingerprint=phi.fingerprint, **options)
    agg.absorb(m, client="a", task="t")
    return agg


@quick
@given(st.sampled_from(KINDS), st.booleans(), st.integers(0, 20))
def test_groups_of_one_row_are_absorbed_as_the_rows_themselves(kind, bias, seed):
    phi = phi_of(kind, bias=bias)
    Z, y = rows(20, seed=seed)
    m = condense(Z, y, phi, group_size=1, min_group=1)
    agg = lifted(m, phi, dtype="float64")
    H = np.asarray(phi(Z), dtype=np.float64)
    scale = np.sum(H**2)
    np.testing.assert_allclose(agg.gram(), H.T @ H, atol=1e-5 * scale)
    assert agg.accounts.energy == pytest.approx(scale, rel=1e-5)
    exact = Aggregator(M, fingerprint=phi.fingerprint, dtype="float64")
    exact.absorb(
        fedran.summarize(H, y, rank=None, fingerprint=phi.fingerprint), client="a", task="t"
    )
    assert agg.counts == exact.counts
    np.testing.assert_allclose(
        agg.solve().weights, exact.solve().weights, atol=1e-3 * np.sqrt(scale)
    )


def test_one_mixture_is_lifted_to_any_width_and_seed():
    Z, y = rows(200)
    m = condense(Z, y, phi_of(), 4, 2, directions=4)
    for width, seed in ((8, 0), (300, 0), (64, 5)):
        phi = phi_of(M=width, seed=seed)
        agg = lifted(m, phi)
        H = np.asarray(phi(Z), dtype=np.float64)
        assert agg.accounts.n_rows == agg.accounts.mixture_rows == 200
        assert agg.accounts.energy == pytest.approx(np.sum(H**2), rel=0.05)
        # Within a group phi is nearly linear, so first and second moments nearly agree.
        assert np.linalg.norm(agg.gram() - H.T @ H) < 0.05 * np.linalg.norm(H.T @ H)
        assert np.mean(agg.solve().predict(phi(Z)) == np.array(y)) > 0.9


def test_there_is_no_bound_where_mixtures_were_absorbed():
    Z, y = rows()
    agg = lifted(condense(Z, y, phi_of()), phi_of())
    assert agg.solve().diagnosis.eps_W == np.finfo(np.float64).max


def test_order_matters_only_to_rounding_and_absorbing_twice_changes_nothing():
    phi = phi_of()
    parts = {f"c{i}": condense(*rows(40, seed=i), phi, 4, 2) for i in range(4)}
    a, b = (Aggregator(M, fingerprint=phi.fingerprint, dtype="float64") for _ in range(2))
    for client, m in parts.items():
        assert a.absorb(m, client=client, task="t")
    for client, m in reversed(parts.items()):
        assert b.absorb(m, client=client, task="t")
    np.testing.assert_allclose(a.gram(), b.gram(), rtol=1e-10)
    before = a.gram()
    assert not a.absorb(parts["c0"], client="c0", task="t")
    assert np.array_equal(a.gram(), before)
    with pytest.raises(Refused, match="another one"):
        a.absorb(parts["c1"], client="c0", task="t")


def test_a_replay_is_bit_for_bit():
    phi = phi_of()
    m = condense(*rows(), phi, 4, 2)
    a, b = lifted(m, phi), lifted(pickle.loads(pickle.dumps(m)), phi_of())
    assert np.array_equal(a.gram(), b.gram())
    assert np.array_equal(a.solve().weights, b.solve().weights)
    other = lifted(with_part(m, spreads=m.parts[0].spreads * 0.999), phi)
    assert not np.array_equal(a.gram(), other.gram())


def test_parts_lie_side_by_side_with_their_own_directions():
    phi = phi_of()
    a = condense(*rows(40, seed=1), phi, 4, 2, directions=2)
    b = condense(*rows(30, seed=2), phi, 4, 2, directions=3)
    both = sum([a, b])
    assert both.n_rows == 70
    assert both.n_groups == a.n_groups + b.n_groups
    assert [len(p.shares) for p in both.parts] == [2, 3]
    counts = dict(zip(both.classes, both.counts, strict=True))
    for label in both.classes:
        own = sum(dict(zip(m.classes, m.counts, strict=True)).get(label, 0) for m in (a, b))
        assert counts[label] == own
    agg = lifted(both, phi)
    assert agg.accounts.n_rows == 70
    assert agg.counts == counts
    with pytest.raises(Refused, match="kind"):
        a + condense(*rows(), phi_of("relu"))


def test_withheld_classes_add_up_and_an_empty_mixture_is_neutral():
    phi = phi_of()
    Z, _ = rows(12)
    a = condense(Z, ["x"] * 10 + ["rare"] * 2, phi)
    b = condense(Z[:3], ["rare"] * 3, phi)
    assert b.parts == ()
    assert b.n_rows == 0
    assert "groups=0" in repr(b)
    assert (a + b).withheld == {"rare": 5}
    assert (a + b).n_rows == 10
    agg = Aggregator(M, fingerprint=phi.fingerprint)
    assert agg.absorb(b, client="c", task="t")
    assert agg.classes == ()


def test_torch_and_numpy_give_the_same_sums():
    phi = phi_of()
    Z, y = rows()
    m = condense(Z, y, phi, 4, 2)
    on_torch = condense(torch.from_numpy(Z), y, phi, 4, 2)
    assert on_torch.n_groups == m.n_groups
    moved = m.to("cpu")
    assert isinstance(moved.parts[0].means, torch.Tensor)
    assert moved.content_digest() == m.content_digest()
    assert moved.nbytes == m.nbytes
    a, b = lifted(m, phi), lifted(moved, phi, device="cpu")
    np.testing.assert_allclose(b.gram().numpy(), a.gram(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(b.solve().weights, a.solve().weights, atol=1e-3)


def test_aggregators_that_cannot_lift_refuse():
    phi = phi_of()
    m = condense(*rows(), phi)
    wide = Aggregator(M + 1)
    wide.fingerprint = phi.fingerprint  # as after a summary whose fingerprint states another width
    for agg, why in (
        (Aggregator(M), "feature map"),
        (Aggregator(M, fingerprint=phi_of("relu").fingerprint), "kind"),
        (Aggregator(M, fingerprint=fedran.Fingerprint.of(backbone="x")), "random features"),
        (wide, "M = 25"),
    ):
        with pytest.raises(Refused, match=why):
            agg.absorb(m, client="a", task="t")
        assert not agg.absorbed


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: {"counts": p.counts * 0}, "at least one row"),
        (lambda p: {"spreads": p.spreads - 1}, "at least 0"),
        (lambda p: {"spreads": p.spreads * np.nan}, "finite"),
        (lambda p: {"spreads": p.spreads + 0.1}, "norm 1"),
        (lambda p: {"means": p.means * 2}, "norm 1"),
        (lambda p: {"means": p.means * np.nan}, "finite"),
        (lambda p: {"means": -p.means}, "at least 0"),
        (lambda p: {"shares": p.shares + 1}, "at most 1"),
        (lambda p: {"directions": p.directions * 2}, "orthonormal"),
        (lambda p: {"directions": p.directions[:, :-1]}, "shape"),
        (lambda p: {"codes": p.codes[:-1]}, "values"),
        (lambda p: {"codes": p.codes * 0}, "all 3 classes"),
        (lambda p: {"classes": p.classes[::-1]}, "order"),
        (lambda p: {"means": p.means[:-1]}, "one row for each"),
    ],
)
def test_numbers_that_cannot_describe_rows_are_refused(change, why):
    phi = phi_of("hellinger")
    m = condense(*rows(), phi, 4, 2, directions=3)
    agg = Aggregator(M, fingerprint=phi.fingerprint)
    with pytest.raises(Refused, match=why):
        agg.absorb(with_part(m, **change(m.parts[0])), client="a", task="t")
    assert not agg.absorbed


def test_blocks_of_drawn_rows_are_small_also_where_the_features_are_wide(monkeypatch):
    sizes = []
    monkeypatch.setattr(exact_sum, "BLOCK_BYTES", 4 * 700)
    phi = fedran.RandomFeatures(100, 2, kind="relu")
    project = phi.project

    def recorded(X):
        sizes.append(len(X))
        return project(X)

    monkeypatch.setattr(phi, "project", recorded)
    Z = np.random.default_rng(0).random((40, 100))
    total = ExactSum(2)
    total.add_mixture(condense(Z, [0] * 40, phi, 2, 2), phi)
    assert sum(sizes) >= 80
    assert max(sizes) <= 16  # 7 rows of 100 float32, or one group


def test_a_mixture_along_the_largest_direction_of_the_map_cannot_overflow_the_gram():
    phi = fedran.RandomFeatures(2000, 2, kind="relu")
    top = np.linalg.svd(phi.projection)[0][:, :1].T
    top *= np.sign((top @ phi.projection).sum())
    m = condense(np.repeat(1e18 * top, 4, axis=0), [0] * 4, phi, 1, 1)
    assert m.energy < 1e37
    agg = Aggregator(2, fingerprint=phi.fingerprint)
    assert np.sum(phi.project(top.astype(np.float32)).astype(float) ** 2) * m.energy > 1e39
    with pytest.raises(Refused, match="energy"):
        agg.absorb(m, client="a", task="t")
    assert not agg.absorbed
