"""FedEWC: Fisher information by hand, an anchor that holds, and the published one that does not."""

import numpy as np
import pytest
import torch

from fedran_bench.methods.trained.fedewc import (
    blend_fisher,
    elastic_penalty,
    fisher_information,
)
from fedran_bench.methods.trained.local_training import batches, seeded_random
from fedran_bench.methods.trained.messages import (
    strip_prefix,
)
from fedran_bench.methods.trained.networks import (
    build,
    initialise,
)
from fedran_bench.methods.trained.rows import Rows, as_tensor, network_input
from fedran_bench.methods.trained.weights import (
    copy_weights,
    grow_head,
    student_network,
)
from helpers.bench.toy_training import Rounds, make_tasks, quick, same


@pytest.fixture(scope="module")
def stream(dataset):
    return make_tasks(dataset, n_clients=2)


def copied(tensors):
    return {n: t.clone() for n, t in tensors.items()}


def test_the_fisher_of_a_network_against_a_slow_loop(dataset):
    network = build("small", 0)
    initialise(network, 1)
    weights = grow_head(copy_weights(network), 6, 1)
    X = as_tensor(
        Rounds(quick("finetune", network="small"), dataset, make_tasks(dataset)).data.X_train[:21],
        "cpu",
    )
    y = torch.tensor(dataset.y_train[:21])
    student = student_network("small", weights, "cpu")
    found = fisher_information(student, Rows(X, y), 8, seeded_random(3), "cpu")
    assert same(
        {n: p.detach() for n, p in student.named_parameters()}, {n: weights[n] for n in found}
    )
    student = student_network("small", weights, "cpu")
    names, tensors = zip(*student.named_parameters(), strict=True)
    total = [torch.zeros_like(t) for t in tensors]
    parts = list(batches(21, 8, seeded_random(3)))
    for part in parts:
        value = torch.nn.functional.cross_entropy(student(network_input(X[part])), y[part])
        for sum_, slope in zip(total, torch.autograd.grad(value, tensors), strict=True):
            sum_ += slope**2
    capped = 0
    for name, sum_ in zip(names, total, strict=True):
        by_hand = np.minimum(sum_.numpy() / len(parts), 1e-4)
        np.testing.assert_allclose(found[name].numpy(), by_hand, rtol=1e-4, atol=1e-12)
        capped += int((by_hand == 1e-4).sum())
    assert capped > 0
    assert set(found) == set(names)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_fishers_are_blended_row_by_row(share):
    rng = np.random.default_rng(0)
    old, new = rng.random((2, 3)), rng.random((4, 3))
    tensors = {"w": torch.tensor(new)}
    found = blend_fisher({"w": torch.tensor(old)}, tensors, share)["w"].numpy()
    np.testing.assert_allclose(found[:2], share * old + (1 - share) * new[:2])
    np.testing.assert_array_equal(found[2:], new[2:])
    np.testing.assert_array_equal(tensors["w"], new)
    assert torch.equal(blend_fisher({}, tensors, share)["w"], tensors["w"])


@pytest.mark.parametrize("network", ["head", "small"])
def test_anchor_and_fisher_are_fixed_at_the_end_of_a_task(dataset, stream, network):
    method = quick("fedewc", network=network)
    rounds = Rounds(method, dataset, stream)
    held = {c: {} for c in rounds.clients}
    for t in range(3):
        for r in range(method.n_rounds):
            rounds.one(t, r)
            assert all(same(rounds.cstates[c], held[c]) for c in rounds.clients)
        rounds.one(t, method.n_rounds)
        for c in rounds.clients:
            memory = rounds.cstates[c]
            anchor, fisher = strip_prefix("anchor", memory), strip_prefix("fisher", memory)
            assert anchor.keys() == fisher.keys()
            assert all(torch.equal(a, rounds.state.weights[n]) for n, a in anchor.items())
            assert all(bool(((f >= 0) & (f <= 1.0001e-4)).all()) for f in fisher.values())
            assert not same(memory, held[c])
            held[c] = copied(memory)
    one, other = (strip_prefix("fisher", m) for m in rounds.cstates.values())
    assert not same(one, other)


@pytest.mark.parametrize(("task", "share"), [(1, 2 / 4), (2, 4 / 6)])
def test_the_fisher_of_a_later_task_is_blended_with_the_share_of_old_classes(
    dataset, stream, task, share
):
    method = quick("fedewc")
    rounds = Rounds(method, dataset, stream).run(task)
    old = copied(strip_prefix("fisher", rounds.cstates["client-0"]))
    rounds.task(task)
    weights, data = rounds.state.weights, rounds.rows(task, 0)
    network = student_network("head", weights, "cpu")
    rows = Rows(torch.tensor(data.X), torch.tensor(data.y))
    random = seeded_random("client", 0, task, method.n_rounds, "client-0")
    fresh = fisher_information(network, rows, method.batch, random, "cpu")
    found, known = strip_prefix("fisher", rounds.cstates["client-0"]), 2 * task
    for name, f in fresh.items():
        mixed = share * old[name] + (1 - share) * f[:known]
        np.testing.assert_allclose(found[name][:known], mixed, rtol=1e-5)
        assert torch.equal(found[name][known:], f[known:])


def far(strength, dataset, stream, seed=0):
    """How far weights of large Fisher move from the anchor in the second task."""
    method = quick("fedewc", network="small", strength=strength, n_rounds=3, lr=0.02)
    rounds = Rounds(method, dataset, stream, seed).run(1)
    memory = copied(rounds.cstates["client-0"])
    anchor, fisher = strip_prefix("anchor", memory), strip_prefix("fisher", memory)
    rounds.task(1)
    moved = [
        (rounds.state.weights[n][: len(a)] - a)[fisher[n] > 0.9e-4].abs() for n, a in anchor.items()
    ]
    free = [
        (rounds.state.weights[n][: len(a)] - a)[fisher[n] < 1e-9].abs() for n, a in anchor.items()
    ]
    return float(torch.cat(moved).mean()), float(torch.cat(free).mean())


@pytest.mark.parametrize("seed", [0, 1])
def test_the_penalty_holds_important_weights_at_the_anchor(dataset, seed):
    stream = make_tasks(dataset, n_clients=1)
    loose, _ = far(0.0, dataset, stream, seed)
    tied, free = far(1e5, dataset, stream, seed)
    assert tied < 0.3 * loose
    assert tied < 0.3 * free


@pytest.mark.parametrize("seed", range(3))
def test_penalty_and_its_gradient_against_numpy(seed):
    """The second tensor has two rows more than the anchor."""
    rng = np.random.default_rng(seed)
    shapes = {"a": (3, 2), "b": (4,)}
    fixed = {"a": (3, 2), "b": (2,)}
    theta = {n: rng.standard_normal(s) for n, s in shapes.items()}
    star, fisher = ({n: rng.random(s) for n, s in fixed.items()} for _ in range(2))
    weights = {n: torch.tensor(v, requires_grad=True) for n, v in theta.items()}
    anchor, F = ({n: torch.tensor(v) for n, v in part.items()} for part in (star, fisher))
    value = elastic_penalty(weights, anchor, F)
    (3 * value).backward()
    moved = {n: theta[n][: len(star[n])] - star[n] for n in star}
    expected = 0.5 * sum(float((fisher[n] * moved[n] ** 2).sum()) for n in star)
    assert float(value.detach()) == pytest.approx(expected, rel=1e-12)
    for n, slope in ((n, weights[n].grad.numpy()) for n in star):
        np.testing.assert_allclose(slope[: len(star[n])], 3 * fisher[n] * moved[n], rtol=1e-12)
        assert not slope[len(star[n]) :].any()
