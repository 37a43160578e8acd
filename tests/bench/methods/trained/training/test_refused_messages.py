"""Labels, models and messages that a trained method refuses, without a change of its state."""

import numpy as np
import pytest
import torch

from fedran.core.errors import Refused
from fedran_bench.methods.protocol import ClientData
from fedran_bench.methods.trained.messages import pack_tensors, unpack_tensors
from helpers.bench.toy_training import Rounds, make_tasks, quick, saved

KEYS = ("finetune", "fedlwf", "fedewc", "fedicarl", "target")


@pytest.fixture(scope="module")
def stream(dataset):
    return make_tasks(dataset)


def model(blob, kind="local-model"):
    return unpack_tensors(kind, blob, "cpu")


def test_a_row_of_an_earlier_class_is_refused_where_only_new_logits_count(dataset, stream):
    rounds = Rounds(quick("finetune"), dataset, stream).run(1)
    message = rounds.method.broadcast(rounds.state, 1, 0)
    data = ClientData("c", "1", dataset.X_train[:4], np.array([2, 3, 0, 1]))
    with pytest.raises(Refused, match="labels: expected classes of this task"):
        rounds.method.client(None, message, data, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"classes": 3, "known": 0},
        {"classes": ["a"], "known": 5},
        {"classes": [[1]], "known": 0},
        {"classes": ["a", "a"], "known": 0},
    ],
)
def test_a_malformed_broadcast_is_refused(fields, dataset, stream):
    rounds = Rounds(quick("finetune"), dataset, stream)
    sent = unpack_tensors("global-model", rounds.method.broadcast(rounds.state, 0, 0), "cpu")
    blob = pack_tensors("global-model", {"task": 0, "round": 0, **fields}, sent.tensors)
    with pytest.raises(Refused):
        rounds.method.client(None, blob, ClientData("c", "0", dataset.X_train[:2], ["a", "a"]), 0)


def altered(blob, change):
    found = model(blob)
    fields = {n: v for n, v in found.header.fields.items() if n != "kind"}
    return pack_tensors("local-model", fields, change(found.tensors))


def with_nan(tensors):
    name = min(tensors)
    spoiled = tensors[name].clone()
    spoiled.view(-1)[0] = float("nan")
    return {**tensors, name: spoiled}


SPOILED = [
    (with_nan, "the model of client-1: expected finite values, got NaN"),
    (lambda t: {**t, "more": torch.ones(1)}, "the model of client-1: .* with more"),
    (lambda t: {n: v for n, v in t.items() if n != "head.bias"}, "without head.bias"),
    (lambda t: {**t, "head.bias": torch.ones(9)}, r"head.bias: expected float32 \[2\]"),
    (lambda t: {**t, "head.bias": torch.ones(2).long()}, "got torch.int64"),
    (lambda t: {}, "the model of client-1: expected the"),
]


@pytest.mark.parametrize(("change", "words"), SPOILED)
@pytest.mark.parametrize("key", KEYS)
def test_malformed_models_are_refused_and_change_nothing(dataset, stream, key, change, words):
    rounds = Rounds(quick(key, n_rounds=1), dataset, stream)
    sent = rounds.uploads(0, 0)
    before = saved(rounds)
    spoiled = {**sent, "client-1": altered(sent["client-1"], change)}
    with pytest.raises(Refused, match=words):
        rounds.method.aggregate(rounds.state, 0, 0, spoiled)
    assert saved(rounds) == before
    rounds.state = rounds.method.aggregate(rounds.state, 0, 0, sent)
    assert saved(rounds) != before


def test_the_model_of_another_network_is_refused(dataset, stream):
    small = Rounds(quick("finetune", network="small"), dataset, stream)
    head = Rounds(quick("finetune"), dataset, stream)
    before = saved(small)
    with pytest.raises(Refused, match="the model of client-0: expected the 17 tensors"):
        small.method.aggregate(small.state, 0, 0, head.uploads(0, 0))
    assert saved(small) == before


@pytest.mark.parametrize("rows", [-1, 1.5, "3", None, True])
def test_an_invalid_row_count_is_refused(dataset, stream, rows):
    rounds = Rounds(quick("finetune"), dataset, stream)
    sent = rounds.uploads(0, 0)
    sent["client-0"] = pack_tensors("local-model", {"rows": rows}, model(sent["client-0"]).tensors)
    with pytest.raises(Refused, match="rows: expected an integer"):
        rounds.method.aggregate(rounds.state, 0, 0, sent)


@pytest.mark.parametrize("key", KEYS[1:])
def test_malformed_closing_messages_are_refused(dataset, stream, key):
    method = quick(key)
    assert method.rounds(0) == method.n_rounds + 1
    rounds = Rounds(method, dataset, stream)
    for r in range(method.n_rounds):
        local = rounds.one(0, r)
    before = saved(rounds)
    for blob in (b"", b"x" * 50, local["client-0"]):
        with pytest.raises(Refused):
            method.aggregate(rounds.state, 0, method.n_rounds, {"client-0": blob})
        assert saved(rounds) == before
