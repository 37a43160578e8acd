"""Losses of the trained methods against NumPy code written from the formulas."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran_bench.methods.trained.local_training import cross_entropy, distillation
from fedran_bench.methods.trained.synthesis import (
    adversarial_loss,
    divergence,
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
