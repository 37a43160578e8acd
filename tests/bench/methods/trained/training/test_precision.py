"""Mixed precision and rows that stay on an accelerator."""

import numpy as np
import pytest
import torch

from fedran_bench.methods.protocol import ClientData
from fedran_bench.methods.registry import make_method
from fedran_bench.methods.trained import rows
from fedran_bench.methods.trained.messages import unpack_tensors
from fedran_bench.methods.trained.method import Finetune
from fedran_bench.run.runner import PreparedJob, run
from helpers.bench.toy_training import Rounds, make_tasks, quick, saved

KEYS = ("finetune", "fedlwf", "fedewc", "fedicarl", "target")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_only_bfloat16_computes_in_mixed_precision(dataset, monkeypatch, precision):
    seen = set()

    def loss(self, client, X, codes):
        logits = client.student(rows.network_input(X))
        seen.add((logits.dtype, client.student.head.weight.dtype))
        return self.classification_loss(client, logits, codes)

    monkeypatch.setattr(Finetune, "loss", loss)
    method = quick("finetune", network="small", precision=precision)
    Rounds(method, dataset, make_tasks(dataset)).one(0, 0)
    assert seen == {(getattr(torch, precision), torch.float32)}


@pytest.mark.parametrize("key", KEYS)
def test_bfloat16_learns_and_sends_float32(dataset, key):
    stream = make_tasks(dataset, n_tasks=2)
    method = quick(key, network="small", precision="bfloat16", n_rounds=5, epochs=4)
    rounds = Rounds(method, dataset, stream).task(0)
    sent = unpack_tensors("global-model", rounds.message, "cpu").tensors
    assert all(t.dtype == torch.float32 for n, t in sent.items() if n.startswith("model/"))
    first = np.isin(dataset.y_test, stream.tasks[0].classes)
    found = method.predict(rounds.state, rounds.data.X_test[first])
    assert np.mean(found == dataset.y_test[first]) > 0.8
    plain = Rounds(quick(key, network="small", n_rounds=5, epochs=4), dataset, stream).task(0)
    assert len(rounds.message) == len(plain.message)
    assert saved(rounds) != saved(plain)
    rounds.task(1)


def test_the_precision_is_one_of_two_and_not_for_a_head():
    with pytest.raises(ValueError, match="precision must be one of float32, bfloat16, got 'half'"):
        make_method("finetune", {"network": "small", "precision": "half"})
    with pytest.raises(ValueError, match="network = 'head' trains in float32"):
        make_method("finetune", {"precision": "bfloat16"})


def test_rows_are_copied_to_an_accelerator_once_per_task(monkeypatch):
    copies = []
    monkeypatch.setattr(rows, "as_tensor", lambda X, device: copies.append(X) or X.copy())
    monkeypatch.setattr(rows, "_computed", {})
    X = np.arange(12, dtype=np.uint8).reshape(4, 3)

    def copied(client="a", task="0", X=X, device="cuda"):
        data = ClientData(client, task, X.copy(), np.zeros(4, int))
        np.testing.assert_array_equal(rows.client_tensor(data, device), X)
        return len(copies)

    assert [copied(), copied(), copied("b"), copied(), copied("b")] == [1, 1, 2, 2, 2]
    assert [copied(X=X + 1), copied(X=X + 1), copied(X=X)] == [3, 3, 4]
    assert [copied(task="1"), copied(task="1"), copied()] == [5, 5, 6]
    assert [copied(device="cpu"), copied(device="cpu")] == [7, 8]
    assert set(rows._computed) == {("a", "0", "cuda")}


@needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("key", KEYS)
def test_a_network_learns_the_same_on_a_gpu(dataset, key, precision):
    stream = make_tasks(dataset)
    here = run(PreparedJob(key, quick(key, network="small"), dataset, stream))
    method = quick(key, network="small", precision=precision, device="cuda")
    there = run(PreparedJob(key, method, dataset, stream))
    assert [t.bytes_up for t in here.tasks] == [t.bytes_up for t in there.tasks]
    assert abs(here.A_T - there.A_T) <= 15
