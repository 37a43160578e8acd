import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

import fedran
from fedran.core._linalg.arrays import like
from fedran.core.errors import Refused
from fedran.core.features import (
    RandomFeatures,
    feature_map,
    row_energy_range,
)
from fedran.core.fingerprint import Fingerprint
from fedran.core.prepare import KINDS, KernelFeatures
from helpers.bench.toy_federation import random_features
from helpers.core.reference import quick


def test_the_projection_is_the_frozen_stream_of_the_legacy_generator():
    expected = np.random.RandomState(0).standard_normal((4, 6)).astype(np.float32)
    projection = RandomFeatures(4, 6, seed=0).projection
    np.testing.assert_array_equal(projection, expected)
    assert projection.dtype == np.float32
    # The only remembered numbers: this is what every machine must draw.
    golden = [[1.764052, 0.400157, 0.978738], [0.950088, -0.151357, -0.103219]]
    np.testing.assert_allclose(projection[:2, :3], golden, atol=5e-7)


kinds = pytest.mark.parametrize("kind", KINDS)


def rows_of(kind, rng, n, d):
    """Rows that the kind accepts."""
    Z = rng.standard_normal((n, d))
    return np.abs(Z) if kind == "hellinger" else Z


@quick
@given(
    st.integers(0, 30),
    st.integers(1, 12),
    st.integers(1, 40),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["float32", "float64", "float16", "int8"]),
    st.sampled_from(KINDS),
    st.booleans(),
)
def test_features_equal_a_reference_row_by_row(n, d, M, seed, dtype, kind, bias):
    Z = (4 * rows_of(kind, np.random.default_rng(seed), n, d)).astype(dtype)
    phi = RandomFeatures(d, M, kind, seed, bias)
    H = phi(Z)
    assert H.dtype == np.float32
    assert H.shape == (n, M)
    np.testing.assert_allclose(H, random_features(Z, M, seed, kind, bias), atol=1e-4)


@kinds
@pytest.mark.parametrize("bias", [False, True])
def test_prepared_rows_times_the_projection_are_what_is_activated(kind, bias):
    Z = rows_of(kind, np.random.default_rng(0), 6, 4)
    phi = RandomFeatures(4, 9, kind, seed=2, bias=bias)
    prepared = phi.prepare(Z)
    assert prepared.shape == (6, 4 + bias)
    assert prepared.dtype == np.float32
    if kind != "relu":
        np.testing.assert_allclose(np.linalg.norm(prepared, axis=1), 1, rtol=1e-6)
    U = prepared.astype(np.float64) @ phi.projection
    H = np.maximum(U, 0) if kind == "relu" else U * ndtr(U)
    np.testing.assert_allclose(phi(Z), H, atol=1e-5)


@quick
@given(st.sampled_from(["cosine", "hellinger"]), st.floats(-30, 30), st.integers(0, 1000))
def test_the_scale_of_a_row_does_not_matter_without_a_bias(kind, power, seed):
    Z = rows_of(kind, np.random.default_rng(seed), 4, 5)
    phi = RandomFeatures(5, 20, kind)
    np.testing.assert_allclose(phi(Z * 10.0**power), phi(Z), atol=2e-5)
    assert np.abs(phi(np.float32(1e-38) * np.float32(Z)) - phi(Z)).max() < 2e-2


@kinds
def test_a_bias_sees_the_scale_and_keeps_zero_rows_apart(kind):
    Z = rows_of(kind, np.random.default_rng(1), 3, 5)
    phi = RandomFeatures(5, 30, kind, bias=True)
    plain = RandomFeatures(5, 30, kind)
    zeros = np.zeros((2, 5))
    assert not np.any(plain(zeros))
    assert not np.any(plain.prepare(zeros))
    u = phi.projection[-1].astype(np.float64)
    wanted = np.sqrt(5) * np.maximum(u, 0) if kind == "relu" else u * ndtr(u)
    np.testing.assert_allclose(phi(zeros), np.tile(wanted, (2, 1)), atol=1e-6)
    assert np.abs(phi(3 * Z) / np.linalg.norm(phi(3 * Z)) - phi(Z) / np.linalg.norm(phi(Z))).max()
    np.testing.assert_array_equal(phi.projection[:5], plain.projection)


@pytest.mark.parametrize("as_array", [np.asarray, torch.asarray])
def test_hellinger_refuses_negative_values_with_row_and_value(as_array):
    Z = np.ones((5000, 2), dtype=np.float32)
    Z[4321, 1] = -0.25
    phi = RandomFeatures(2, 4, "hellinger")
    for call in (phi, phi.prepare, phi.blocks):
        with pytest.raises(Refused, match=r"at least 0.*got -0\.25 in row 4321; use kind='cosine'"):
            call(as_array(Z))
    Z[4321, 1] = -0.0
    assert phi(as_array(Z)).shape == (5000, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@kinds
@pytest.mark.parametrize("bias", [False, True])
def test_tensors_give_tensors_with_the_same_values(dtype, kind, bias):
    Z = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)).abs().to(dtype)
    phi = RandomFeatures(5, 33, kind, seed=1, bias=bias)
    H = phi(Z)
    assert isinstance(H, torch.Tensor)
    assert H.dtype == torch.float32
    np.testing.assert_allclose(H.numpy(), phi(Z.numpy()), atol=1e-5)


@quick
@given(st.integers(0, 40), st.integers(0, 4000))
def test_blocks_respect_their_limit_and_cover_every_row_once(n, max_bytes):
    Z = np.random.default_rng(n).standard_normal((n, 3))
    phi = RandomFeatures(3, 50)
    blocks = list(phi.blocks(Z, max_bytes=max_bytes))
    assert [i for rows, _ in blocks for i in range(n)[rows]] == list(range(n))
    for rows, H in blocks:
        assert H.nbytes <= max_bytes or len(H) == 1
        np.testing.assert_allclose(H, phi(Z[rows]), atol=1e-5)


def test_the_projection_is_copied_once_per_device(monkeypatch):
    copies = []

    def counted(x, reference):
        copies.append(x)
        return like(x, reference)

    monkeypatch.setattr("fedran.core.features.like", counted)
    phi = RandomFeatures(5, 16)
    Z = torch.rand(40, 5)
    blocks = list(phi.blocks(Z, max_bytes=4 * 16 * 3))
    assert len(blocks) == 14
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(phi, [Z] * 8))
    assert len(copies) == 1
    again = pickle.loads(pickle.dumps(phi))
    np.testing.assert_array_equal(again(Z), phi(Z))
    assert len(copies) == 2


def test_the_fingerprint_holds_parameters_and_source():
    phi = RandomFeatures(3, 8, seed=5, source={"backbone": "vit", "weights": "abc"})
    assert dict(phi.fingerprint.fields) == {
        "M": 8,
        "backbone": "vit",
        "bias": False,
        "d": 3,
        "kind": "cosine",
        "map_version": 2,
        "seed": 5,
        "weights": "abc",
    }
    without = {k: v for k, v in phi.fingerprint.fields.items() if k not in ("M", "seed")}
    assert dict(phi.input_fingerprint.fields) == without
    assert RandomFeatures(3, 8, source="vit").fingerprint.fields["backbone"] == "vit"
    assert "vit" in repr(phi)
    assert "source" not in repr(RandomFeatures(3, 8))


@pytest.mark.parametrize(
    "change",
    [{"in_features": 4}, {"out_features": 9}, {"seed": 1}, {"kind": "relu"}, {"bias": True}],
)
def test_every_parameter_changes_the_fingerprint(change):
    base = {"in_features": 3, "out_features": 8, "seed": 0}
    assert RandomFeatures(**base).fingerprint != RandomFeatures(**base | change).fingerprint
    changed = RandomFeatures(**base | change)
    assert RandomFeatures.from_fingerprint(changed.fingerprint).fingerprint == changed.fingerprint
    same = RandomFeatures(np.int64(3), np.int32(8), seed=np.uint8(0), bias=np.False_)
    assert RandomFeatures(**base).fingerprint == same.fingerprint


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *(({"in_features": bad}, "in_features must be a positive") for bad in (0, 2.0, True, "3")),
        *(({"out_features": bad}, "out_features must be a positive") for bad in (-1, None)),
        *(({"seed": bad}, "seed must") for bad in (-1, 2**32, 1.0, True, "0")),
        *(({"kind": bad}, "kind must be one of") for bad in ("tanh", None, ["relu"])),
        *(({"bias": bad}, "bias must be True or False") for bad in (1, None)),
    ],
)
def test_other_parameters_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        RandomFeatures(**{"in_features": 3, "out_features": 4, **change})


def test_a_source_may_not_redefine_the_maps_own_fields():
    with pytest.raises(ValueError, match="seed"):
        RandomFeatures(3, 4, source={"seed": 1})
    with pytest.raises(Refused):
        RandomFeatures(3, 4, source={"weights": b"raw"})


@pytest.mark.parametrize(("bad", "name"), [(np.nan, "NaN"), (np.inf, "infinity")])
@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("kind", ["cosine", "relu"])
def test_values_that_are_not_finite_are_refused_with_row_and_column(bad, name, make, kind):
    Z = np.ones((4, 3))
    Z[2, 1] = bad
    phi = RandomFeatures(3, 4, kind)
    for use in (phi, phi.prepare, lambda rows: list(phi.blocks(rows))):
        with pytest.raises(fedran.Refused, match=f"finite values, got {name} in row 2, column 1"):
            use(make(Z))


def test_finite_values_whose_sum_overflows_are_accepted():
    Z = np.full((4, 3), 1e308)
    assert np.isfinite(RandomFeatures(3, 4)(Z)).all()


@pytest.mark.parametrize("kind", ["cosine", "hellinger", "relu"])
@pytest.mark.parametrize("bias", [False, True])
def test_features_that_are_not_projected_are_the_prepared_rows(kind, bias):
    Z = np.random.default_rng(0).random((7, 4)).astype(np.float32)
    phi = RandomFeatures(4, 4 + bias, kind, bias=bias, source="b", projected=False)
    assert np.array_equal(phi(Z), RandomFeatures(4, 9, kind, bias=bias).prepare(Z))
    assert np.array_equal(np.concatenate([H for _, H in phi.blocks(Z, 40)]), phi(Z))
    again = RandomFeatures.from_fingerprint(phi.fingerprint)
    assert np.allclose(again(torch.as_tensor(Z)).numpy(), phi(Z), atol=1e-6)
    assert again.fingerprint == phi.fingerprint
    assert phi.fingerprint != RandomFeatures(4, 4 + bias, kind, bias=bias, source="b").fingerprint
    assert repr(phi).endswith("projected=False)")
    if kind != "relu":
        low, high = row_energy_range(phi.fingerprint)
        assert low == 0
        assert np.all((phi(Z) ** 2).sum(axis=1) < high)


def test_features_that_are_not_projected_keep_their_width():
    with pytest.raises(ValueError, match="out_features must be that, got 8"):
        RandomFeatures(4, 8, projected=False)
    with pytest.raises(ValueError, match="projected must be True or False"):
        RandomFeatures(4, 4, projected=1)
    with pytest.raises(ValueError, match="own fields"):
        RandomFeatures(4, 4, source={"projected": "x"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor])
def test_exact_blocks_do_not_depend_on_the_rows_beside_a_row(kind, array):
    phi = RandomFeatures(30, 100, kind=kind, bias=True)
    Z = array(np.random.default_rng(0).random((50, 30)))
    H = np.concatenate([np.asarray(H) for _, H in phi.blocks(Z, exact=True)])
    for n in (1, 3, 8):
        parts = [np.asarray(H) for _, H in phi.blocks(Z, 4 * 100 * n, exact=True)]
        assert len(parts[0]) == n
        np.testing.assert_array_equal(np.concatenate(parts), H)
    np.testing.assert_allclose(H, np.asarray(phi(Z)), rtol=1e-5, atol=1e-5)
    assert H.dtype == np.float32


@pytest.mark.parametrize("bias", [False, True])
def test_a_fingerprint_gives_its_map_back(bias):
    linear = RandomFeatures(3, 3 + bias, bias=bias, source="b", projected=False)
    for phi in (
        KernelFeatures(3, "hellinger", bias, source={"backbone": "b", "weights": "w"}),
        RandomFeatures(3, 8, "relu", 5, bias, source="b"),
        linear,
    ):
        again = feature_map(phi.fingerprint)
        assert (type(again), again.fingerprint) == (type(phi), phi.fingerprint)
    with pytest.raises(Refused, match="feature map of version"):
        feature_map(Fingerprint.of(backbone="b"))
