"""FedLwF: a teacher that never changes, and logits that stay near its own."""

import numpy as np
import pytest
import torch

from fedran_bench.methods.trained.local_training import ClientRound, seeded_random
from fedran_bench.methods.trained.messages import (
    strip_prefix,
)
from fedran_bench.methods.trained.method import FedLwF
from fedran_bench.methods.trained.rows import Rows
from fedran_bench.methods.trained.weights import (
    copy_weights,
    student_network,
    teacher_network,
)
from helpers.bench.toy_training import Rounds, make_tasks, quick, same


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
