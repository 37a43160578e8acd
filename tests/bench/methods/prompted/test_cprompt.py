"""Fed-CPrompt against slow references: both losses, their two models, and the averaging."""

import numpy as np
import pytest
import torch

from fedran_bench.methods.prompted.codaprompt import POOL, component_weights
from fedran_bench.methods.prompted.cprompt import FedCPrompt
from fedran_bench.methods.trained.local_training import ClientRound
from fedran_bench.methods.trained.messages import unpack_tensors
from fedran_bench.methods.trained.rows import Rows
from fedran_bench.streams import Stream, Task
from helpers.bench.tiny_vit import tiny_vit
from helpers.bench.toy_training import Rounds, make_tasks

BOTH = pytest.mark.parametrize("flavour", ["corrected", "as_published"])
SMALL = {"components": 3, "length": 4, "blocks": 2, "n_rounds": 2, "epochs": 2, "batch": 8}


def small(**more):
    return FedCPrompt(weights=tiny_vit(), lr=0.01, **(SMALL | more))


def moved(weights, first):
    """The weights with other values in the rows that are trained, as after some steps."""
    generator = torch.Generator().manual_seed(0)
    changed = dict(weights)
    for name in POOL:
        noise = 0.3 * torch.randn(weights[name][first:].shape, generator=generator)
        changed[name] = torch.cat([weights[name][:first], weights[name][first:] + noise])
    return changed


def prepared(rounds, task, k=0):
    """One client in a round of a task, with the rows that it trains on."""
    method, state = rounds.method, rounds.method._open_task(rounds.state, task)
    data = rounds.rows(task, k)
    X = method.embedded(data.X)
    codes = torch.tensor([list(state.classes).index(c) for c in data.y])
    rows = Rows(X, codes)
    client = ClientRound(task, 0, state.known, state.classes, state.weights, {}, rows, {}, None)
    return client, method.training_rows(client)


def test_attention_vectors_pass_through_a_softmax(dataset):
    rounds = Rounds(small(), dataset, make_tasks(dataset)).run(1)
    weights, X = rounds.state.weights, rounds.method.embedded(rounds.data.X_test[:4])
    A = weights["attention"].exp()
    alpha = component_weights(X.query, A / A.sum(-1, keepdim=True), weights["keys"])
    wanted = torch.einsum("nml,mlkw->lnkw", alpha, weights["components"])
    found = rounds.method.prefixes(weights, X.query)
    for block in range(2):
        torch.testing.assert_close(found[block].flatten(1, 2), wanted[block])


def test_the_two_models_are_the_received_one_and_that_of_the_last_task(dataset):
    rounds = Rounds(small(), dataset, make_tasks(dataset)).run(1)
    last = {n: t.clone() for n, t in rounds.state.weights.items()}
    client, rows = prepared(rounds, 1)
    method = rounds.method
    torch.testing.assert_close(rows.X.extra["far"], method.features(last, client.rows.X))
    torch.testing.assert_close(rows.X.extra["near"], method.features(client.weights, client.rows.X))
    assert not torch.allclose(rows.X.extra["near"], rows.X.extra["far"])
    assert set(prepared(Rounds(small(), dataset, make_tasks(dataset)), 0)[1].X.extra) == {"near"}


@BOTH
@pytest.mark.parametrize("task", [0, 1])
def test_the_loss_is_cross_entropy_and_the_contrastive_term(dataset, flavour, task):
    method = small(flavour=flavour, contrast=0.3, repulsion=2.0, margin=0.5)
    rounds = Rounds(method, dataset, make_tasks(dataset)).run(task)
    client, rows = prepared(rounds, task)
    weights = moved(client.weights, 3 * task)
    with torch.no_grad():
        found = float(method.loss(client, weights, rows.X, rows.codes))
        a = method.features(weights, client.rows.X).double().numpy()
        p = method.features(client.weights, client.rows.X).double().numpy()
        n = rows.X.extra["far"].double().numpy() if task else None
    W, b = (client.weights[f"head.{x}"].double().numpy() for x in ("weight", "bias"))
    logits = (a @ W.T + b)[:, client.known :]
    codes = rows.codes.numpy() - client.known
    wanted = np.mean([np.log(np.exp(z).sum()) - z[c] for z, c in zip(logits, codes, strict=True)])
    near = [sum((a[i] - p[i]) ** 2) for i in range(len(a))]
    far = [sum((a[i] - n[i]) ** 2) for i in range(len(a))] if task else None
    if flavour == "as_published":
        total = 1000 * sum(near)
        wanted += total if far is None else max(0, total - 10 * sum(far) + 1)
    elif far is None:
        wanted += 0.3 * np.mean(near) / 16
    else:
        hinges = [max(0, x / 16 - 2 * y / 16 + 0.5) for x, y in zip(near, far, strict=True)]
        assert sum(h > 0 for h in hinges) > 0
        wanted += 0.3 * np.mean(hinges)
    assert found == pytest.approx(wanted, rel=1e-4)


def test_the_published_average_takes_the_row_counts_of_other_clients(dataset):
    first = make_tasks(dataset).tasks[0]
    parts = first.rows
    uneven = [np.concatenate([parts[0], parts[1][:4]]), parts[1][4:], parts[2]]
    stream = Stream((Task(first.classes, tuple(uneven)),), {})
    counts = [len(rows) for rows in uneven]
    assert len(set(counts)) == 3
    for flavour in ("corrected", "as_published"):
        rounds = Rounds(small(flavour=flavour), dataset, stream)
        sent = rounds.one(0, 0)
        models = [unpack_tensors("local-model", b, "cpu").tensors for b in sent.values()]
        found = rounds.state.weights["components"]
        orders = [
            order
            for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
            if torch.allclose(
                found,
                sum(counts[i] * m["components"] for i, m in zip(order, models, strict=True))
                / sum(counts),
                atol=1e-7,
            )
        ]
        assert len(orders) == 1
        assert (orders[0] == (0, 1, 2)) == (flavour == "corrected")
