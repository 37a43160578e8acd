"""The same seed gives the same bits."""

from dataclasses import replace

import pytest
import torch

from fedran_bench.methods.trained.messages import pack_tensors, unpack_tensors
from helpers.bench.toy_training import Rounds, make_tasks, quick, saved

KEYS = ("finetune", "fedlwf", "fedewc", "fedicarl", "target")
RUNS = [(key, {}) for key in KEYS] + [
    (key, {"network": "small"}) for key in ("finetune", "fedewc", "fedicarl")
]


@pytest.fixture(scope="module")
def stream(dataset):
    return make_tasks(dataset)


def model(blob, kind="local-model"):
    return unpack_tensors(kind, blob, "cpu")


@pytest.mark.parametrize(("key", "more"), RUNS)
def test_results_depend_on_the_seed_alone(dataset, stream, key, more):
    found = []
    for seed, world in ((0, 1), (0, 2), (1, 1)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(world)
            rounds = Rounds(quick(key, epochs=1, **more), dataset, stream, seed)
            found.append(saved(rounds.run(2)))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("network", ["head", "small"])
def test_random_numbers_of_a_client_depend_on_seed_task_round_and_name(dataset, stream, network):
    method = quick("finetune", network=network, batch=2)
    rounds = Rounds(method, dataset, stream)
    found = model(method.broadcast(rounds.state, 0, 0), "global-model")
    fields = {n: v for n, v in found.header.fields.items() if n != "kind"}

    def sent(name="client-0", seed=0, **more):
        message = pack_tensors("global-model", {**fields, **more}, found.tensors)
        return method.client(None, message, replace(rounds.rows(0, 0), client=name), seed)[1]

    others = [sent(), sent("client-1"), sent(seed=1), sent(task=1), sent(round=1)]
    assert len(set(others)) == 5
    assert sent() == others[0]


def test_the_order_of_uploads_does_not_matter(dataset, stream):
    method = quick("finetune", network="small")
    rounds = Rounds(method, dataset, stream)
    sent = rounds.uploads(0, 0)
    one = method.aggregate(rounds.state, 0, 0, sent).weights
    other = method.aggregate(rounds.state, 0, 0, dict(reversed(sent.items()))).weights
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-6, atol=1e-7)
