"""The estimate of memory covers what a run keeps: the network, tokens, activations, messages."""

import pytest

from fedran.bench.run.memory import estimate_needs, prompted_footprint
from fedran.bench.run.runner import PreparedJob
from fedran.methods.registry import make_method
from helpers.tiny_vit import DEPTH, WIDTH, tiny_vit
from helpers.toy_training import Rounds, make_tasks

TOKENS = 5
"""Of an image: the class token and 2 x 2 patches."""


def method(**settings):
    sizes = {"blocks": 1, "components": 2, "n_rounds": 1, "epochs": 1}
    return make_method("fed-codaprompt", {"weights": tiny_vit(), **sizes, **settings})


def test_tokens_of_all_clients_and_activations_of_a_batch_are_counted(dataset):
    stream = make_tasks(dataset)
    rows = sum(len(r) for r in stream.tasks[0].rows)
    found = prompted_footprint(method(batch=16), stream)
    tokens = 4 * TOKENS * WIDTH * rows
    activations = 4 * TOKENS * WIDTH * 16 * 10 * DEPTH
    assert found.tensors > tokens + activations
    larger = prompted_footprint(method(batch=32), stream)
    half = prompted_footprint(method(batch=16, precision="bfloat16"), stream)
    assert larger.tensors - found.tensors >= activations
    assert found.tensors - half.tensors >= (tokens + activations) / 2


def test_messages_fit_into_their_estimate(dataset):
    stream = make_tasks(dataset)
    rounds = Rounds(method(), dataset, stream)
    sent = rounds.uploads(0, 0)
    assert prompted_footprint(rounds.method, stream).messages >= 0.5 * sum(map(len, sent.values()))


@pytest.mark.parametrize("device", [None, "cuda"])
def test_a_run_is_estimated_before_it_starts(dataset, device):
    settings = {"weights": tiny_vit(), "blocks": 1, "components": 2}
    job = PreparedJob(
        "fed-codaprompt",
        make_method("fed-codaprompt", settings, device),
        dataset,
        make_tasks(dataset),
    )
    needs = estimate_needs(job)
    assert needs.host > 0
    assert (needs.device > 0) == (device is not None)
