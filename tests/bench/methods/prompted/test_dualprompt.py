"""Fed-DualPrompt against slow references: choice of the prompt, features, loss, what is trained."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran_bench.methods.prompted.dualprompt import FedDualPrompt, choose_prompts
from fedran_bench.methods.trained.local_training import ClientRound
from fedran_bench.methods.trained.rows import Rows
from helpers.bench.tiny_vit import WIDTH, tiny_vit
from helpers.bench.toy_training import Rounds, make_tasks

BOTH = pytest.mark.parametrize("flavour", ["corrected", "as_published"])
SMALL = {
    "general_blocks": 1,
    "task_blocks": 1,
    "general_length": 2,
    "task_length": 3,
    "batch": 8,
    "lr": 0.05,
    "n_rounds": 2,
    "epochs": 2,
}


def small(**more):
    return FedDualPrompt(weights=tiny_vit(), **(SMALL | more))


def after_two_tasks(dataset, **more):
    return Rounds(small(**more), dataset, make_tasks(dataset)).run(2)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_the_prompt_is_that_of_the_nearest_key(n, tasks, k, seed):
    rng = np.random.default_rng(seed)
    query, keys = rng.standard_normal((n, 6)), rng.standard_normal((tasks, k, 6))
    found = choose_prompts(torch.tensor(query), torch.tensor(keys))
    for i in range(n):
        for j in range(k):
            cosines = [
                query[i] @ keys[t, j] / np.linalg.norm(query[i]) / np.linalg.norm(keys[t, j])
                for t in range(tasks)
            ]
            assert found[i, j] == np.argmax(cosines)


@BOTH
def test_inference_runs_every_image_with_the_prompts_of_its_own_keys(dataset, flavour):
    rounds = after_two_tasks(dataset, flavour=flavour)
    weights = rounds.state.weights
    X = rounds.method.embedded(rounds.data.X_test)
    chosen = choose_prompts(X.query, weights["keys"])
    network = rounds.method.vit.network
    assert len(set(chosen[:, 0].tolist())) > 1 or flavour == "as_published"
    for i in range(5):
        prefixes = {0: weights["general"][:1], 1: weights["prompts"][chosen[i, 0], 0][None]}
        with torch.no_grad():
            wanted = network.encode(X.tokens[i : i + 1], prefixes)[0, 0]
            found = rounds.method.features(weights, X)[i]
        torch.testing.assert_close(found, wanted)


@BOTH
def test_the_loss_is_cross_entropy_of_the_new_classes_minus_the_cosine_of_the_key(dataset, flavour):
    rounds = after_two_tasks(dataset, flavour=flavour, pull=0.7)
    method, weights = rounds.method, rounds.state.weights
    data = rounds.rows(1, 0)
    X = method.embedded(data.X)
    codes = torch.tensor([list(rounds.state.classes).index(c) for c in data.y])
    client = ClientRound(1, 0, 2, rounds.state.classes, weights, {}, Rows(X, codes), {}, None)
    prefixes = {
        0: weights["general"][0].repeat(len(X), 1, 1, 1),
        1: weights["prompts"][1, 0].repeat(len(X), 1, 1, 1),
    }
    with torch.no_grad():
        features = method.vit.network.encode(X.tokens, prefixes)[:, 0].double().numpy()
        found = float(method.loss(client, weights, X, codes))
    logits = features @ weights["head.weight"].double().numpy().T
    logits = (logits + weights["head.bias"].double().numpy())[:, 2:]
    wanted = np.mean(
        [np.log(np.exp(z).sum()) - z[c] for z, c in zip(logits, codes.numpy() - 2, strict=True)]
    )
    if flavour == "corrected":
        key, q = weights["keys"][1, 0].double().numpy(), X.query.double().numpy()
        cosines = q @ key / np.linalg.norm(q, axis=1) / np.linalg.norm(key)
        wanted -= 0.7 * cosines.mean()
    assert found == pytest.approx(wanted, rel=1e-4)


@BOTH
def test_a_task_trains_its_own_prompt_and_key_and_leaves_earlier_ones(dataset, flavour):
    rounds = Rounds(small(flavour=flavour), dataset, make_tasks(dataset)).run(1)
    before = {n: t.clone() for n, t in rounds.state.weights.items()}
    started = rounds.method._open_task(rounds.state, 1).weights
    rounds.task(1)
    after = rounds.state.weights
    assert torch.equal(started["general"], before["general"])
    for name in ("prompts", "keys"):
        assert torch.equal(after[name][0], before[name][0])
    assert torch.equal(after["head.weight"][:2], before["head.weight"][:2])
    assert not torch.equal(after["general"], before["general"])
    assert not torch.equal(after["prompts"][1], started["prompts"][1])
    assert torch.equal(after["keys"][1], started["keys"][1]) == (flavour == "as_published")


@BOTH
def test_every_block_has_its_own_key_as_published_and_chooses_by_it(dataset, flavour):
    sizes = {"general_blocks": 0, "task_blocks": 2}
    rounds = after_two_tasks(dataset, flavour=flavour, **sizes)
    keys, prompts = rounds.state.weights["keys"], rounds.state.weights["prompts"]
    assert keys.shape == (2, 2 if flavour == "as_published" else 1, WIDTH)
    X = rounds.method.embedded(rounds.data.X_test)
    chosen = choose_prompts(X.query, keys).expand(-1, 2)
    prefixes = {block: prompts[chosen[:, block], block] for block in range(2)}
    wanted = rounds.method.vit.network.encode(X.tokens, prefixes)[:, 0]
    torch.testing.assert_close(rounds.method.features(rounds.state.weights, X), wanted)
