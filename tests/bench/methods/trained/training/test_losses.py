"""Losses of the trained methods against NumPy code written from the formulas."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran_bench.methods.trained.fedewc import elastic_penalty
from fedran_bench.methods.trained.training.local_training import cross_entropy, distillation
from fedran_bench.methods.trained.training.synthesis import (
    adversarial_loss,
    divergence,
    statistics_loss,
)

SHAPES = [(1, 1), (1, 2), (2, 3), (7, 5), (33, 10)]


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def log_softmax(x):
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def draw(seed, *shape):
    return 3 * np.random.default_rng(seed).standard_normal(shape)


def slope(f, x, step=1e-6):
    """The gradient by central differences."""
    found = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        found[i] = (f(up) - f(down)) / (2 * step)
    return found


def gradient(f, x):
    t = torch.tensor(x, requires_grad=True)
    f(t).backward()
    return t.grad.numpy()


@pytest.mark.parametrize(("n", "c"), SHAPES)
@pytest.mark.parametrize("known", [0, 1, 4])
def test_cross_entropy_over_new_classes_against_numpy(n, c, known):
    logits = draw(n, n, known + c)
    codes = known + np.random.default_rng(c).integers(c, size=n)

    def by_hand(x):
        return -log_softmax(x[:, known:])[np.arange(n), codes - known].mean()

    def ours(x):
        return cross_entropy(torch.as_tensor(x), torch.tensor(codes), known)

    assert float(ours(logits)) == pytest.approx(by_hand(logits), rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(gradient(ours, logits), slope(by_hand, logits), atol=1e-8)
    assert not gradient(ours, logits)[:, :known].any()


@pytest.mark.parametrize(("n", "c"), SHAPES)
def test_cross_entropy_over_all_classes_against_numpy(n, c):
    logits, codes = draw(n + 100, n, c), np.random.default_rng(c).integers(c, size=n)
    value = float(cross_entropy(torch.tensor(logits), torch.tensor(codes)))
    expected = -log_softmax(logits)[np.arange(n), codes].mean()
    assert value == pytest.approx(expected, rel=1e-12, abs=1e-12)
    same = cross_entropy(torch.tensor(logits), torch.tensor(codes), 0)
    assert float(same) == value


@pytest.mark.parametrize(("n", "c"), SHAPES)
@pytest.mark.parametrize(("temperature", "more"), [(1.0, 0), (2.0, 3), (5.0, 1)])
def test_distillation_against_numpy(n, c, temperature, more):
    """No factor T^2, and only as many columns as the teacher has."""
    student, teacher = draw(n, n, c + more), draw(n + 1, n, c)
    soft = softmax(teacher / temperature)
    expected = -(soft * log_softmax(student[:, :c] / temperature)).sum(1).mean()
    given = torch.tensor(student, requires_grad=True)
    value = distillation(given, torch.tensor(teacher), temperature)
    assert float(value.detach()) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    value.backward()
    slopes = np.zeros((n, c + more))
    slopes[:, :c] = (softmax(student[:, :c] / temperature) - soft) / (temperature * n)
    np.testing.assert_allclose(given.grad.numpy(), slopes, atol=1e-6)


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(2, 9), st.floats(0.5, 20))
@settings(max_examples=40, deadline=None)
def test_distillation_is_least_where_student_and_teacher_agree(seed, n, c, temperature):
    teacher, other = torch.tensor(draw(seed, n, c)), torch.tensor(draw(seed + 1, n, c))
    least = float(distillation(teacher, teacher, temperature))
    p = softmax(teacher.numpy() / temperature)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(1).mean()
    assert least == pytest.approx(entropy, rel=1e-4, abs=1e-5)
    assert float(distillation(other, teacher, temperature)) >= least - 1e-5
    shifted = float(distillation(teacher + 7.0, teacher, temperature))
    assert shifted == pytest.approx(least, rel=1e-4, abs=1e-5)


def weights_like(seed, shapes):
    return {name: draw(seed + i, *shape) for i, (name, shape) in enumerate(shapes.items())}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("grown", [0, 1, 3])
def test_elastic_penalty_of_a_head_that_grew(seed, grown):
    rng = np.random.default_rng(seed)
    c, d = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    then = weights_like(seed, {"conv": (2, 3, 2, 2), "head.weight": (c, d), "head.bias": (c,)})
    now = weights_like(
        seed + 50,
        {"conv": (2, 3, 2, 2), "head.weight": (c + grown, d), "head.bias": (c + grown,)},
    )
    fisher = {name: np.abs(draw(seed + 9, *a.shape)) for name, a in then.items()}

    def by_hand(weights):
        return 0.5 * sum(
            (fisher[n] * (weights[n][: len(then[n])] - then[n]) ** 2).sum() for n in then
        )

    def tensors(arrays):
        return {n: torch.tensor(a, requires_grad=True) for n, a in arrays.items()}

    given = tensors(now)
    value = elastic_penalty(given, tensors(then), tensors(fisher))
    assert float(value.detach()) == pytest.approx(by_hand(now), rel=1e-12)
    value.backward()
    for name in then:
        found = slope(lambda x, name=name: by_hand({**now, name: x}), now[name])
        np.testing.assert_allclose(given[name].grad.numpy(), found, atol=1e-6)
        assert not given[name].grad[len(then[name]) :].any()
    assert float(elastic_penalty(tensors(then), tensors(then), tensors(fisher)).detach()) == 0


@pytest.mark.parametrize("channels", [1, 2, 64])
def test_the_statistics_loss_is_a_sum_of_norms(channels):
    m, v, to_m, to_v = (draw(channels + i, channels) for i in range(4))
    expected = np.sqrt(((m - to_m) ** 2).sum()) + np.sqrt(((v - to_v) ** 2).sum())
    value = statistics_loss(*map(torch.tensor, (m, v, to_m, to_v)))
    assert float(value) == pytest.approx(expected, rel=1e-12)
    found = gradient(lambda x: statistics_loss(x, *map(torch.tensor, (v, to_m, to_v))), m)
    np.testing.assert_allclose(found, (m - to_m) / np.linalg.norm(m - to_m), atol=1e-12)


@pytest.mark.parametrize(("n", "c"), SHAPES)
@pytest.mark.parametrize("temperature", [1.0, 20.0])
def test_divergence_of_every_row_times_the_squared_temperature(n, c, temperature):
    student, teacher = draw(n, n, c), draw(n + 7, n, c)
    p, q = log_softmax(teacher / temperature), log_softmax(student / temperature)
    expected = temperature**2 * (np.exp(p) * (p - q)).sum(1)
    found = divergence(torch.tensor(student), torch.tensor(teacher), temperature).numpy()
    assert found.shape == (n,)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    assert (found > -1e-3).all()
    same = divergence(torch.tensor(teacher), torch.tensor(teacher), temperature)
    assert not same.any()


@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(2, 6))
@settings(max_examples=40, deadline=None)
def test_the_adversarial_loss_counts_rows_on_which_both_agree(seed, n, c):
    student, teacher = draw(seed, n, c), draw(seed + 1, n, c)
    p, q = log_softmax(teacher), log_softmax(student)
    rows = (np.exp(p) * (p - q)).sum(1)
    agree = student.argmax(1) == teacher.argmax(1)
    value = float(adversarial_loss(torch.tensor(student), torch.tensor(teacher)))
    assert value == pytest.approx(-(rows * agree).sum() / n, rel=1e-4, abs=1e-4)
    assert value <= 1e-5


@pytest.mark.parametrize("c", [2, 5])
def test_the_adversarial_loss_is_zero_where_no_row_agrees(c):
    teacher = torch.tensor(draw(c, 12, c))
    student = torch.roll(teacher, 1, dims=1).requires_grad_()
    value = adversarial_loss(student, teacher)
    assert float(value.detach()) == 0
    value.backward()
    assert not student.grad.any()
