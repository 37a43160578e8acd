"""FedLwF: a teacher that never changes, and logits that stay near its own."""

import numpy as np
import pytest
import torch

from fedran_bench.methods.trained.finetune import FedLwF
from fedran_bench.methods.trained.training.local_training import ClientRound, seeded_random
from fedran_bench.methods.trained.training.messages import (
    strip_prefix,
)
from fedran_bench.methods.trained.training.rows import Rows, as_tensor
from fedran_bench.methods.trained.training.weights import (
    copy_weights,
    evaluate,
    student_network,
    teacher_network,
)
from helpers.toy_training import Rounds, make_tasks, quick, same


@pytest.fixture(scope="module")
def stream(dataset):
    return make_tasks(dataset, n_clients=2)


@pytest.mark.parametrize("network", ["head", "small"])
def test_the_teacher_is_the_last_tasks_model_and_never_changes(
    dataset, stream, network, monkeypatch
):
    teachers, plain = [], FedLwF.loss

    def look(self, client, X, codes):
        value = plain(self, client, X, codes)
        teachers.append(None if client.teacher is None else copy_weights(client.teacher))
        return value

    monkeypatch.setattr(FedLwF, "loss", look)
    rounds = Rounds(quick("fedlwf", network=network), dataset, stream)
    last = None
    for t in range(3):
        teachers.clear()
        for r in range(rounds.method.n_rounds):
            rounds.one(t, r)
            for memory in rounds.cstates.values():
                assert same(strip_prefix("teacher", memory), last or {})
        assert teachers
        assert all((found is None) if last is None else same(found, last) for found in teachers)
        rounds.one(t, rounds.method.n_rounds)
        last = rounds.state.weights
        for memory in rounds.cstates.values():
            assert same(strip_prefix("teacher", memory), last)


@pytest.mark.parametrize("network", ["head", "small"])
def test_fedlwf_without_distillation_equals_finetune(dataset, stream, network):
    lwf = Rounds(quick("fedlwf", network=network, strength=0.0), dataset, stream).run(2)
    plain = Rounds(quick("finetune", network=network), dataset, stream).run(2)
    assert same(lwf.state.weights, plain.state.weights)


def test_the_first_task_has_no_teacher(dataset, stream):
    weak, strong = (
        Rounds(quick("fedlwf", strength=s), dataset, stream).run(1).state.weights
        for s in (0.0, 1000.0)
    )
    assert same(weak, strong)


def old_logits(weights, X):
    network = teacher_network("small", weights, "cpu")
    return evaluate(network, X)[:, :2]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_strength_the_old_logits_stay_near_the_teachers(dataset, stream, seed):
    moved = []
    for strength in (0.0, 10.0):
        method = quick(
            "fedlwf", network="small", strength=strength, lr=0.02, n_rounds=6, weight_decay=0.0
        )
        rounds = Rounds(method, dataset, stream, seed).run(1)
        teacher = rounds.state.weights
        rounds.task(1)
        rows = np.concatenate(stream.tasks[1].rows)
        X = as_tensor(rounds.data.X_train[rows], "cpu")
        now, then = (torch.softmax(old_logits(w, X), 1) for w in (rounds.state.weights, teacher))
        moved.append(float((now - then).abs().mean()))
    assert moved[1] < 0.6 * moved[0]


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_of_fedlwf_against_numpy(seed):
    rng = np.random.default_rng(seed)
    d, known, new, n = 5, int(rng.integers(1, 4)), int(rng.integers(1, 4)), 7
    W, V = rng.standard_normal((known + new, d)), rng.standard_normal((known, d))
    b, c = rng.standard_normal(known + new), rng.standard_normal(known)
    X, codes = rng.standard_normal((n, d)), known + rng.integers(new, size=n)

    def tensors(W, b):
        return {
            "head.weight": torch.tensor(W, dtype=torch.float32),
            "head.bias": torch.tensor(b, dtype=torch.float32),
        }

    client = ClientRound(
        1, 0, known, (), {}, {}, Rows(torch.zeros(0, d), torch.zeros(0)), {}, seeded_random("x")
    )
    client.network = student_network("head", tensors(W, b), "cpu")
    client.teacher = teacher_network("head", tensors(V, c), "cpu")
    method = quick("fedlwf", strength=3.0, temperature=2.0)
    found = method.loss(client, torch.tensor(X, dtype=torch.float32), torch.tensor(codes)).detach()

    def log_softmax(x):
        return x - np.log(np.exp(x).sum(1, keepdims=True))

    logits, soft = X @ W.T + b, X @ V.T + c
    value = -log_softmax(logits[:, known:])[np.arange(n), codes - known].mean()
    p = np.exp(log_softmax(soft / 2))
    value += -3 * (p * log_softmax(logits[:, :known] / 2)).sum(1).mean()
    assert float(found) == pytest.approx(value, rel=1e-4)
