"""FedAvg over rounds: averaging, heads that grow, predictions."""

import numpy as np
import pytest
import torch

from fedran_bench.methods.trained.messages import unpack_tensors
from fedran_bench.streams import Stream, Task
from helpers.bench.toy_training import (
    Rounds,
    make_images,
    make_tasks,
    quick,
    same,
)

KEYS = ("finetune", "fedlwf", "fedewc", "fedicarl", "target")


@pytest.fixture(scope="module")
def stream(dataset):
    return make_tasks(dataset)


def model(blob, kind="local-model"):
    return unpack_tensors(kind, blob, "cpu")


@pytest.mark.parametrize("averaging", ["weighted", "unweighted"])
def test_the_average_of_a_round_against_numpy(dataset, averaging):
    rows = np.flatnonzero(np.isin(dataset.y_train, (0, 1)))
    stream = Stream((Task((0, 1), (rows[:2], rows[2:9], rows[9:10])),), {})
    rounds = Rounds(quick("finetune", network="small", averaging=averaging), dataset, stream)
    sent = rounds.one(0, 0)
    found = [model(b) for b in sent.values()]
    assert [m.header.integer("rows") for m in found] == [2, 7, 1]
    shares = np.array([2, 7, 1]) / 10 if averaging == "weighted" else np.ones(3) / 3
    for name, tensor in rounds.state.weights.items():
        parts = np.stack([m.tensors[name].numpy().astype(np.float64) for m in found])
        by_hand = np.tensordot(shares, parts, 1)
        np.testing.assert_allclose(tensor.numpy(), by_hand, rtol=1e-5, atol=1e-6)


def test_clients_send_everything_except_batchnorm_counters(dataset, stream):
    rounds = Rounds(quick("finetune", network="small"), dataset, stream)
    sent = model(rounds.one(0, 0)["client-0"]).tensors
    assert {n.rsplit(".", 1)[1] for n in sent} == {"weight", "bias", "running_mean", "running_var"}
    assert sent["head.weight"].shape == (2, 64)


@pytest.mark.parametrize("averaging", ["weighted", "unweighted"])
@pytest.mark.parametrize("key", KEYS)
def test_a_client_without_rows_does_not_change_the_average(dataset, stream, key, averaging):
    empty = np.zeros(0, np.int64)
    tasks = [Task(t.classes, (t.rows[0], empty, t.rows[2])) for t in stream.tasks[:2]]
    less = [Task(t.classes, (t.rows[0], t.rows[2])) for t in stream.tasks[:2]]
    method = quick(key, averaging=averaging)
    rounds = Rounds(method, dataset, Stream(tuple(tasks), {}))
    alone = Rounds(method, dataset, Stream(tuple(less), {}))
    alone.clients = ("client-0", "client-2")
    alone.cstates = dict.fromkeys(alone.clients)
    for t in range(2):
        for r in range(method.rounds(t)):
            sent = rounds.one(t, r)
            alone.one(t, r)
            assert len(sent["client-1"]) < 250
    assert same(rounds.state.weights, alone.state.weights)


@pytest.mark.parametrize("key", KEYS)
def test_text_labels_train_like_numbers(stream, key):
    words = ["ant", "bee", "Ünal", "1", "cat dog", "f"]
    numbered, named = make_images(), make_images(names=words)
    tasks = tuple(Task(tuple(words[c] for c in t.classes), t.rows) for t in stream.tasks)
    method = quick(key)
    one = Rounds(method, numbered, stream).run(2)
    other = Rounds(method, named, Stream(tasks, {})).run(2)
    assert same(one.state.weights, other.state.weights)
    found = method.predict(other.state, other.data.X_test)
    expected = [words[c] for c in method.predict(one.state, one.data.X_test)]
    assert found.tolist() == expected


def test_loss_over_new_logits_does_not_change_old_rows_of_a_head(dataset, stream):
    rounds = Rounds(quick("finetune", weight_decay=0.0), dataset, stream).run(1)
    before = rounds.state.weights["head.weight"]
    rounds.task(1)
    assert torch.equal(rounds.state.weights["head.weight"][:2], before)


@pytest.mark.parametrize("key", KEYS)
def test_a_diverging_learning_rate_is_an_error(dataset, stream, key):
    rounds = Rounds(quick(key, lr=1e30, weight_decay=1.0, epochs=9), dataset, stream)
    with pytest.raises(ValueError, match=r"training diverged: .*lr = 1e\+30; lower lr"):
        rounds.run(1)
