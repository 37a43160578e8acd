"""Fed-CODA-Prompt against slow references: weights of components, start, penalty, training."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran_bench.methods.prompted.codaprompt import (
    POOL,
    FedCODAPrompt,
    component_weights,
    orthonormal_rows,
)
from helpers.bench.tiny_vit import tiny_vit
from helpers.bench.toy_training import Rounds, make_tasks

SMALL = {"components": 3, "length": 4, "blocks": 2, "n_rounds": 2, "epochs": 2, "batch": 8}


def small(**more):
    return FedCODAPrompt(weights=tiny_vit(), lr=0.05, **(SMALL | more))


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_the_weight_of_a_component_is_a_cosine(n, m, blocks, seed):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((n, 5))
    A, K = rng.standard_normal((2, m, blocks, 5))
    found = component_weights(*(torch.tensor(v) for v in (q, A, K))).numpy()
    for i, j, b in np.ndindex(n, m, blocks):
        attended = q[i] * A[j, b]
        cosine = attended @ K[j, b] / np.linalg.norm(attended) / np.linalg.norm(K[j, b])
        assert found[i, j, b] == pytest.approx(cosine)


def test_prompts_are_weighted_sums_split_into_keys_and_values(dataset):
    rounds = Rounds(small(), dataset, make_tasks(dataset)).run(2)
    weights, method = rounds.state.weights, rounds.method
    X = method.embedded(rounds.data.X_test[:3])
    alpha = component_weights(X.query, weights["attention"], weights["keys"])
    assert alpha.shape == (3, 6, 2)  # components of both tasks
    found = method.prefixes(weights, X.query)
    for i in range(3):
        for block in range(2):
            prompt = sum(alpha[i, m, block] * weights["components"][m, block] for m in range(6))
            torch.testing.assert_close(found[block][i, 0], prompt[:2])
            torch.testing.assert_close(found[block][i, 1], prompt[2:])
    wanted = method.vit.network.encode(X.tokens, found)[:, 0]
    torch.testing.assert_close(method.features(weights, X), wanted)


@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_new_rows_are_orthonormal_and_orthogonal_to_the_old_ones(count, n_old, seed):
    random = torch.Generator().manual_seed(seed)
    old = 3 * torch.randn(n_old, 9, generator=random)
    new = orthonormal_rows(count, old, random)
    assert new.dtype == torch.float32
    torch.testing.assert_close(new @ new.T, torch.eye(count), atol=1e-5, rtol=0)
    if n_old:
        assert float((new @ old.T).abs().max()) < 1e-4
    again = orthonormal_rows(count, old, torch.Generator().manual_seed(seed + 1))
    assert not torch.equal(new, again)


def test_a_task_starts_orthogonal_to_what_earlier_tasks_trained(dataset):
    rounds = Rounds(small(), dataset, make_tasks(dataset)).run(1)
    started = rounds.method._open_task(rounds.state, 1).weights
    for name in POOL:
        rows = started[name].flatten(2)
        for block in range(2):
            old, new = rows[:3, block], rows[3:, block]
            assert torch.equal(old, rounds.state.weights[name].flatten(2)[:, block])
            assert float((new @ old.T).abs().max()) < 1e-5
            torch.testing.assert_close(new @ new.T, torch.eye(3), atol=1e-5, rtol=0)


def test_old_components_are_not_trained_but_used(dataset):
    rounds = Rounds(small(), dataset, make_tasks(dataset)).run(1)
    before = {n: t.clone() for n, t in rounds.state.weights.items()}
    rounds.task(1)
    after = rounds.state.weights
    for name in POOL:
        assert torch.equal(after[name][:3], before[name])
    X = rounds.method.embedded(rounds.data.X_test)
    without = {name: after[name][3:] for name in POOL}
    assert not torch.allclose(rounds.method.features(after, X), rounds.method.features(without, X))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"blocks": 3}, "blocks must be at most 2, the blocks of the network, got 3"),
        ({"components": 6}, "components must be at most 5, so that those of 3 tasks"),
    ],
)
def test_sizes_that_do_not_fit_the_network_are_refused(dataset, settings, expected):
    with pytest.raises(ValueError, match=expected):
        Rounds(small(**settings), dataset, make_tasks(dataset)).one(0, 0)
