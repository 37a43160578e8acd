"""What all methods with a frozen ViT share: trained rows, schedule, averaging, bytes, resuming."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedran_bench.methods.prompted.base import PromptedMethod, add_rows
from fedran_bench.methods.prompted.codaprompt import FedCODAPrompt
from fedran_bench.methods.prompted.steps import with_rows
from fedran_bench.methods.trained import rows
from fedran_bench.methods.trained.messages import unpack_tensors
from helpers.bench.tiny_vit import WIDTH, tiny_vit
from helpers.bench.toy_training import Rounds, make_tasks, same


@dataclass(frozen=True)
class HeadOnly(PromptedMethod):
    """A linear head on the frozen features; nothing else is trained."""

    title = "Head only"

    def first_trained(self, task, known):
        return {"head.weight": known, "head.bias": known}

    def features(self, weights, X, task=None):
        return X.query


def quick(**settings):
    return HeadOnly(**{"weights": tiny_vit(), "n_rounds": 2, "epochs": 2, "batch": 5} | settings)


def quick_prompts():
    return FedCODAPrompt(weights=tiny_vit(), components=2, blocks=2, length=2, n_rounds=1, epochs=1)


def adam(parameters, rates, gradients_of):
    """Adam in float64, one rate per step, with a new state."""
    first = [torch.zeros_like(p) for p in parameters]
    second = [torch.zeros_like(p) for p in parameters]
    for step, rate in enumerate(rates, 1):
        gradients = gradients_of(step - 1, parameters)
        for i, g in enumerate(gradients):
            first[i] = 0.9 * first[i] + 0.1 * g
            second[i] = 0.999 * second[i] + 0.001 * g**2
            size = first[i] / (1 - 0.9**step)
            parameters[i] = parameters[i] - rate * size / (
                (second[i] / (1 - 0.999**step)).sqrt() + 1e-8
            )
    return parameters


def test_a_round_is_adam_on_masked_cross_entropy_and_a_weighted_mean(dataset):
    """Against Adam written out, with one batch per epoch, in the second task."""
    method = quick(n_rounds=2, epochs=3, batch=100, lr=0.02, weight_decay=0.5)
    rounds = Rounds(method, dataset, make_tasks(dataset, n_clients=2)).task(0)
    rounds.one(1, 0)
    before = {n: t.double() for n, t in rounds.state.weights.items()}
    rates = [0.02 * math.cos(99 * math.pi * e / (200 * 5)) for e in (3, 4, 5)]
    means, total = [0.0, 0.0], 0
    for k in range(2):
        data = rounds.rows(1, k)
        features = method.embedded(data.X).query.double()
        codes = torch.tensor([list(rounds.state.classes).index(c) - 2 for c in data.y])

        def gradients(_, parameters, features=features, codes=codes):
            leaves = [p.clone().requires_grad_() for p in parameters]
            logits = features @ leaves[0].T + leaves[1]
            picked = torch.log_softmax(logits, 1)[range(len(codes)), codes]
            found = torch.autograd.grad(-picked.mean(), leaves)
            return [g + 0.5 * p for g, p in zip(found, parameters, strict=True)]

        start = [before["head.weight"][2:], before["head.bias"][2:]]
        trained = adam(start, rates, gradients)
        means = [m + len(codes) * t for m, t in zip(means, trained, strict=True)]
        total += len(codes)
    rounds.one(1, 1)
    after = rounds.state.weights
    torch.testing.assert_close(after["head.weight"][2:], (means[0] / total).float())
    torch.testing.assert_close(after["head.bias"][2:], (means[1] / total).float())
    assert torch.equal(after["head.weight"][:2], before["head.weight"][:2].float())


def test_only_the_rows_in_training_are_uploaded(dataset):
    rounds = Rounds(quick(), dataset, make_tasks(dataset)).task(0)
    for blob in rounds.uploads(1, 0).values():
        tensors = unpack_tensors("local-model", blob, "cpu").tensors
        assert {n: tuple(t.shape) for n, t in tensors.items()} == {
            "head.weight": (2, WIDTH),
            "head.bias": (2,),
        }
        assert 4 * 2 * (WIDTH + 1) < len(blob) < 4 * 2 * (WIDTH + 1) + 400


def test_batches_come_from_the_client_and_the_round_alone(dataset):
    """The same round of the same client gives the same bytes, whatever ran before."""
    rounds = Rounds(quick(), dataset, make_tasks(dataset))
    first = rounds.uploads(0, 0)
    again = Rounds(quick(), dataset, make_tasks(dataset))
    again.method.client(None, again.method.broadcast(again.state, 0, 0), again.rows(0, 2), 0)
    assert again.uploads(0, 0) == first
    assert len(set(first.values())) == 3


def test_tokens_are_computed_once_per_task_and_client(dataset, monkeypatch):
    monkeypatch.setattr(rows, "_computed", {})
    rounds, calls = Rounds(quick(), dataset, make_tasks(dataset)), []
    embedded = PromptedMethod.embedded
    monkeypatch.setattr(
        PromptedMethod, "embedded", lambda self, X: calls.append(len(X)) or embedded(self, X)
    )
    rounds.run(2)
    assert len(calls) == 2 * 3


def test_an_upload_of_other_shapes_is_refused(dataset):
    rounds = Rounds(quick(), dataset, make_tasks(dataset)).task(0)
    sent = rounds.uploads(1, 0)
    other = Rounds(quick(), dataset, make_tasks(dataset, n_tasks=2)).uploads(0, 0)
    with pytest.raises(ValueError, match=r"client-0: head.\w+: expected float32 \[2.*got"):
        rounds.method.aggregate(rounds.state, 1, 0, {**sent, "client-0": other["client-0"]})


def test_rows_of_an_earlier_task_are_refused(dataset):
    rounds = Rounds(quick(), dataset, make_tasks(dataset)).task(0)
    message = rounds.method.broadcast(rounds.state, 1, 0)
    with pytest.raises(ValueError, match="labels: expected classes of this task"):
        rounds.method.client(None, message, rounds.rows(0, 0), 0)


def test_with_rows_replaces_the_last_rows_and_add_rows_appends():
    weights = {"a": torch.arange(6.0).view(3, 2), "b": torch.ones(2)}
    new = torch.full((1, 2), 9.0, requires_grad=True)
    whole = with_rows(weights, {"a": new})
    assert whole["a"].tolist() == [[0, 1], [2, 3], [9, 9]]
    whole["a"].sum().backward()
    assert new.grad.tolist() == [[1, 1]]
    assert with_rows(weights, {"b": new[0]})["b"] is not weights["b"]
    longer = add_rows(weights, {"a": torch.zeros(1, 2), "c": torch.zeros(1)})
    assert [len(longer[n]) for n in "abc"] == [4, 2, 1]
    assert same({"b": longer["b"]}, {"b": weights["b"]})


def test_scores_do_not_depend_on_the_size_of_a_pass(dataset, monkeypatch):
    rounds = Rounds(quick(), dataset, make_tasks(dataset)).task(0)
    whole = rounds.method.scores(rounds.state, rounds.data.X_test)
    monkeypatch.setattr("fedran_bench.methods.prompted.base.ROWS_PER_PASS", 5)
    torch.testing.assert_close(rounds.method.scores(rounds.state, rounds.data.X_test), whole)
    assert len(rounds.method.predict(rounds.state, np.zeros((0, 8, 8, 3), np.uint8))) == 0
