"""Weights averaged, grown, checked, read from files and put into networks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran.core.errors import Refused
from fedran_bench.methods.trained.networks import (
    build,
    initialise,
)
from fedran_bench.methods.trained.weights import (
    ROWS_PER_PASS,
    average,
    check_weights,
    copy_weights,
    evaluate,
    grow_head,
    initial_weights,
    load_weights,
    student_network,
    teacher_network,
)
from helpers.bench.toy_training import same


def some_weights(seed, d=4, classes=3):
    rng = np.random.default_rng(seed)
    shapes = {"body.conv": (2, 3, 3), "body.running_var": (5,), "head.weight": (classes, d)}
    return {
        name: torch.tensor(rng.standard_normal(shape), dtype=torch.float32)
        for name, shape in {**shapes, "head.bias": (classes,)}.items()
    }


def small(seed=0, classes=2):
    """A small network with random weights everywhere, statistics included."""
    network = build("small", 0)
    initialise(network, seed)
    weights = grow_head(copy_weights(network), classes, seed)
    random = torch.Generator().manual_seed(seed)
    return {n: t + 0.1 * torch.rand(t.shape, generator=random) for n, t in weights.items()}


@pytest.mark.parametrize("how", ["unweighted", "weighted"])
@given(st.lists(st.integers(1, 10**5), min_size=1, max_size=7), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_average_against_numpy(how, rows, seed):
    found = [(some_weights(seed + i), n) for i, n in enumerate(rows)]
    mean = average(found, how)
    assert mean.keys() == found[0][0].keys()
    for name, tensor in mean.items():
        parts = np.stack([w[name].numpy().astype(np.float64) for w, _ in found])
        by_hand = np.average(parts, axis=0, weights=rows if how == "weighted" else None)
        assert tensor.dtype == torch.float32
        np.testing.assert_allclose(tensor.numpy(), by_hand, rtol=1e-6, atol=1e-7)


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=9),
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8),
)
@settings(max_examples=100, deadline=None)
def test_identical_clients_average_to_themselves_bit_for_bit(rows, values):
    weights = {"a": torch.tensor(values, dtype=torch.float32)}
    for how in ("unweighted", "weighted"):
        assert torch.equal(average([(weights, n) for n in rows], how)["a"], weights["a"])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("new", [1, 4])
@pytest.mark.parametrize("d", [1, 3, 64])
def test_a_grown_head_keeps_its_rows(seed, before, new, d):
    weights = some_weights(seed, d, before)
    kept = {n: t.clone() for n, t in weights.items()}
    wide = grow_head(weights, before + new, seed)
    assert wide["head.weight"].shape == (before + new, d)
    assert torch.equal(wide["head.weight"][:before], kept["head.weight"])
    assert torch.equal(wide["head.bias"][:before], kept["head.bias"])
    assert not wide["head.bias"][before:].any()
    rows = wide["head.weight"][before:].abs()
    assert bool((rows <= np.sqrt(3 / d) * (1 + 1e-6)).all())
    assert same(wide, grow_head(weights, before + new, seed))
    assert not same(wide, grow_head(weights, before + new, seed + 1))
    assert same(weights, kept)
    others = [n for n in weights if not n.startswith("head.")]
    assert all(torch.equal(wide[n], kept[n]) for n in others)


def test_load_weights_and_copy_weights_are_inverse():
    network = build("small", 0)
    for classes in (3, 3, 5, 1, 0):
        weights = small(classes, classes)
        assert same(copy_weights(load_weights(weights, network)), weights)


def without(weights, name):
    return {n: t for n, t in weights.items() if n != name}


def with_(weights, **more):
    return {**weights, **{n.replace("__", "."): t for n, t in more.items()}}


def spoiled(weights, name, value):
    tensor = weights[name].clone()
    tensor.view(-1)[-1] = value
    return {**weights, name: tensor}


def test_matching_weights_are_accepted_and_negative_variances_refused():
    weights = {n: t.abs() if n.endswith("var") else t for n, t in some_weights(0).items()}
    assert same(check_weights(weights, some_weights(1), "it"), weights)
    below = {n: -t - 1 if n.endswith("var") else t for n, t in weights.items()}
    with pytest.raises(Refused, match="it: expected variances of at least 0, got -"):
        check_weights(below, weights, "it")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda w: without(w, "head.bias"), "it: expected the 4 tensors .* without head.bias"),
        (lambda w: {}, "it: expected the 4 tensors .* without body.conv"),
        (lambda w: with_(w, foreign=torch.ones(1)), "it: expected the 4 tensors.* with foreign"),
        (lambda w: with_(w, head__bias=torch.ones(4)), r"head.bias: expected float32 \[3\]"),
        (lambda w: with_(w, head__bias=torch.ones(3, 1)), r"got torch.float32 \[3, 1\]"),
        (lambda w: with_(w, head__bias=torch.ones(3).double()), r"got torch.float64 \[3\]"),
        (lambda w: with_(w, head__bias=torch.ones(3).half()), r"got torch.float16 \[3\]"),
        (lambda w: with_(w, head__bias=torch.ones(3).long()), r"got torch.int64 \[3\]"),
        (lambda w: spoiled(w, "body.conv", np.nan), "it: expected finite values"),
        (lambda w: spoiled(w, "head.bias", np.inf), "it: expected finite values"),
        (lambda w: spoiled(w, "body.running_var", -np.inf), "it: expected finite values"),
    ],
)
def test_weights_of_another_network_are_refused(spoil, words):
    with pytest.raises(Refused, match=words):
        check_weights(spoil(some_weights(0)), some_weights(1), "it")


def test_student_and_teacher_are_two_networks():
    weights = initial_weights("small", 0, 7, "cpu")
    weights["head.weight"], weights["head.bias"] = torch.ones(3, 64), torch.zeros(3)
    student = student_network("small", weights, "cpu")
    teacher = teacher_network("small", weights, "cpu")
    assert student is not teacher
    assert student.training
    assert not teacher.training
    assert all(p.requires_grad for p in student.parameters())
    assert not any(p.requires_grad for p in teacher.parameters())
    teacher = teacher_network(
        "small", {**weights, "head.weight": torch.ones(5, 64), "head.bias": torch.zeros(5)}, "cpu"
    )
    assert not any(p.requires_grad for p in teacher.parameters())
    assert len(student.head.bias) == 3


@pytest.mark.parametrize("n", [0, 1, 499, 500, 501, 1100])
def test_evaluate_computes_a_few_rows_at_a_time(n):
    X = torch.randn((n, 4), generator=torch.Generator().manual_seed(n))
    seen = []

    def f(x):
        seen.append(len(x))
        return 2 * x

    assert torch.equal(evaluate(f, X), 2 * X)
    assert sum(seen) == n
    assert max(seen) <= ROWS_PER_PASS
