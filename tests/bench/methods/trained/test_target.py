"""TARGET: images from a model alone, and clients that distil on them."""

import numpy as np
import pytest
import torch

from fedran_bench.methods.trained.local_training import ClientRound
from fedran_bench.methods.trained.messages import (
    unpack_tensors,
)
from fedran_bench.methods.trained.rows import Rows, network_input
from fedran_bench.methods.trained.weights import (
    student_network,
    teacher_network,
)
from fedran_bench.run.runner import PreparedJob, run
from helpers.bench.toy_training import Rounds, blank_images, make_tasks, quick


@pytest.fixture(scope="module")
def stream(dataset):
    return make_tasks(dataset, n_tasks=3, n_clients=2)


@pytest.fixture(scope="module")
def trained(dataset):
    """The weights of a small network that tells all classes apart."""
    method = quick("finetune", network="small", n_rounds=8, epochs=4)
    rounds = Rounds(method, dataset, make_tasks(dataset, n_tasks=1, n_clients=1)).run(1)
    right = method.predict(rounds.state, rounds.data.X_test) == rounds.data.y_test
    assert right.mean() > 0.8
    return rounds.state.weights


def test_synthetic_images_are_sent_once_per_task_except_the_last(dataset, stream):
    method = quick("target")
    rounds = Rounds(method, dataset, stream)
    images = method.synthesis_rounds * method.synthetic_batch
    for t in range(3):
        sizes = []
        for r in range(method.rounds(t)):
            rounds.one(t, r)
            found = unpack_tensors("global-model", rounds.message, "cpu").tensors
            extra = {n for n in found if n.startswith("extra/")}
            closing = r == method.n_rounds
            assert extra == ({"extra/synthetic"} if closing and t < 2 else set())
            sizes.append(len(rounds.message))
        more = sizes[-1] - sizes[0]
        assert (images * 192 <= more < images * 192 + 300) if t < 2 else abs(more) < 20
        made = rounds.state.extra.get("synthetic")
        assert (made is None) == (t == 2)
        for memory in rounds.cstates.values():
            assert memory["synthetic"].shape == (images, 3, 8, 8)
    result = run(PreparedJob("target", method, dataset, stream))
    down = [t.bytes_down[0] for t in result.tasks]
    plain = run(PreparedJob("finetune", quick("finetune", network="small"), dataset, stream))
    model = [t.bytes_down[0] / t.rounds for t in plain.tasks]
    for t in range(3):
        expected = 3 * model[t] + (images * 192 if t < 2 else 0)
        assert down[t] == pytest.approx(expected, abs=300)
    assert all(t.bytes_up[0] < 3 * model[0] * 1.1 for t in result.tasks)


def batches_seen(method, dataset, stream, task):
    """The sizes of everything that clients' students look at in the rounds of a task."""
    rounds, seen = Rounds(method, dataset, stream).run(task), []
    network = student_network("small", rounds.state.weights, "cpu")
    handle = network.register_forward_pre_hook(lambda _, x: seen.append(len(x[0])))
    try:
        rounds.uploads(task, 0)
    finally:
        handle.remove()
    return seen


def test_every_real_batch_comes_with_a_synthetic_one(dataset, stream):
    method = quick("target", batch=4, epochs=2)
    assert batches_seen(method, dataset, stream, 0) == [4, 4] * 2 * 2
    assert batches_seen(method, dataset, stream, 1) == [4, 4] * 2 * 2 * 2


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_of_target_against_numpy(trained, seed):
    """Cross-entropy of real rows over the new logits, distillation on drawn synthetic ones."""
    method, random = quick("target", strength=2.0, batch=5), torch.Generator().manual_seed(seed)
    real, made = (
        torch.randint(0, 256, (n, 3, 8, 8), generator=random).to(torch.uint8) for n in (6, 9)
    )
    old = {**trained, **{n: trained[n][:4] + 0.1 for n in ("head.weight", "head.bias")}}
    codes = torch.tensor([4, 5, 4, 4, 5, 5])
    drawn = torch.randint(9, (5,), generator=random)
    client = ClientRound(
        1, 0, 4, (), {}, {}, Rows(real, codes), {"synthetic": made}, random, replayed=made[drawn]
    )
    client.network = student_network("small", trained, "cpu")
    client.teacher = teacher_network("small", old, "cpu")
    found = float(method.loss(client, real, codes).detach())
    with torch.no_grad():
        logits, student = (client.network(network_input(x)).numpy() for x in (real, made[drawn]))
        teacher = client.teacher(network_input(made[drawn])).numpy()

    def log_softmax(x):
        x = x.astype(np.float64)
        return x - np.log(np.exp(x).sum(1, keepdims=True))

    value = -log_softmax(logits[:, 4:])[np.arange(6), codes.numpy() - 4].mean()
    soft = np.exp(log_softmax(teacher / 2))
    value -= 2 * (soft * log_softmax(student[:, :4] / 2)).sum(1).mean()
    assert found == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize("seed", [1])
def test_distillation_on_synthetic_images_preserves_old_answers(dataset, stream, seed):
    """On the synthetic images, normalised among themselves as in training."""
    moved = []
    for strength in (0.0, 10.0):
        method = quick(
            "target", strength=strength, n_rounds=6, lr=0.02, weight_decay=0.0, synthetic_batch=16
        )
        rounds = Rounds(method, dataset, stream, seed).run(1)
        x = network_input(rounds.state.extra["synthetic"])
        then = teacher_network("small", rounds.state.weights, "cpu")(x)
        rounds.task(1)
        now = student_network("small", rounds.state.weights, "cpu")(x).detach()[:, :2]
        moved.append(float((torch.softmax(now, 1) - torch.softmax(then, 1)).abs().mean()))
    assert moved[1] < 0.7 * moved[0]


@pytest.mark.parametrize(("height", "width", "got"), [(10, 10, "10"), (8, 12, "not square")])
def test_target_refuses_images_that_its_generator_cannot_make(height, width, got):
    data = blank_images(height, width)
    with pytest.raises(ValueError, match=f"multiple of 4, these are {got}: set image_size"):
        run(PreparedJob("target", quick("target", n_rounds=1), data, make_tasks(data, n_tasks=2)))
