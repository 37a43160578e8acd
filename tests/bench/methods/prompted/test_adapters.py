"""Adapters: their formula, their start, the classifier, the schedule and dropout."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fedran.backbones.vit import load_vit  # noqa: E402
from fedran.core.errors import Refused  # noqa: E402
from fedran_bench.methods.prompted.adapters import PARTS, AdapterTuning, adapter_functions  # noqa: E402
from helpers.bench.tiny_vit import DEPTH, WIDTH, tiny_vit  # noqa: E402
from helpers.bench.toy_training import Rounds, make_tasks  # noqa: E402


def tuning(**settings):
    few = {"n_rounds": 2, "epochs": 1, "bottleneck": 4, "batch": 8, "lr": 10.0, **settings}
    return AdapterTuning(weights=tiny_vit(), **few)


@pytest.fixture(scope="module")
def trained(dataset):
    return Rounds(tuning(), dataset, make_tasks(dataset)).run(1)


def random_adapters(seed=0):
    random = torch.Generator().manual_seed(seed)
    shapes = ((DEPTH, 4, WIDTH), (DEPTH, 4), (DEPTH, WIDTH, 4), (DEPTH, WIDTH))
    return {n: torch.randn(s, generator=random) for n, s in zip(PARTS, shapes, strict=True)}


def test_an_adapter_is_a_scaled_bottleneck_with_a_relu():
    weights, tokens = random_adapters(), torch.randn(2, 5, WIDTH)
    for block, adapter in enumerate(adapter_functions(weights, 0.3, dropout=0.0)):
        down, down_bias, up, up_bias = (weights[name][block] for name in PARTS)
        found = adapter(tokens)
        for i in range(2):
            for j in range(5):
                hidden = [max(0.0, float(down[h] @ tokens[i, j] + down_bias[h])) for h in range(4)]
                wanted = 0.3 * (up @ torch.tensor(hidden) + up_bias)
                torch.testing.assert_close(found[i, j], wanted, atol=1e-5, rtol=1e-4)


def test_adapters_start_as_the_frozen_network_and_then_change_it(trained, dataset):
    one, X = tuning(), trained.data.X_test
    network, preprocess = load_vit(tiny_vit())
    images = torch.stack([torch.tensor(preprocess(x)) for x in X])
    frozen = network(images).numpy()
    start = one._open_task(one.init(trained.spec, 0), 0)
    at_first = one.adapted_features(one.final_adapters(start), X)
    np.testing.assert_allclose(at_first, frozen, atol=1e-4)
    adapters = one.final_adapters(trained.state)
    found = one.adapted_features(adapters, X)
    assert np.abs(found - frozen).max() > 5e-3
    by_hand = adapter_functions(trained.state.weights, 0.1, 0.0)
    wanted = network.encode(network.embed(images), adapters=by_hand)[:, 0]
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    # Training in bfloat16 does not change how the features are computed.
    low = replace(one, precision="bfloat16").adapted_features(adapters, X)
    assert np.array_equal(low, found)


def test_a_round_is_plain_sgd_on_the_cosine_classifier(dataset):
    """Two epochs of one batch, against momentum and weight decay written out."""
    one = tuning(dropout=0.0, epochs=2, batch=64, momentum=0.8, weight_decay=0.01, lr=0.3)
    rounds = Rounds(one, dataset, make_tasks(dataset))
    state = one._open_task(rounds.state, 0)
    rounds.one(0, 0)
    sent = []
    for k in range(3):
        weights = {n: t.clone() for n, t in state.weights.items()}
        data = rounds.rows(0, k)
        X = one.embedded(data.X)
        codes = torch.tensor([state.classes.index(c) for c in data.y])
        velocity = {}
        for _ in range(2):
            leaves = {n: t.clone().requires_grad_() for n, t in weights.items()}
            logits = one.class_scores(leaves, one.features(leaves, X))
            loss = torch.nn.functional.cross_entropy(logits, codes)
            loss.backward()
            for name, leaf in leaves.items():
                g = leaf.grad + 0.01 * weights[name]
                velocity[name] = 0.8 * velocity[name] + g if name in velocity else g
                weights[name] = weights[name] - 0.3 * velocity[name]
        sent.append(weights)
    for name, tensor in rounds.state.weights.items():
        wanted = torch.stack([w[name] for w in sent]).mean(0)
        torch.testing.assert_close(tensor, wanted, atol=1e-4, rtol=1e-3)


def test_dropout_depends_on_seed_client_and_round_only(dataset):
    def upload(disturb, seed=0, client=0, dropout=0.5):
        rounds = Rounds(tuning(dropout=dropout, epochs=2), dataset, make_tasks(dataset), seed)
        torch.manual_seed(disturb)
        before = torch.get_rng_state()
        message = rounds.method.broadcast(rounds.state, 0, 0)
        sent = rounds.method.client(None, message, rounds.rows(0, client), seed)[1]
        assert torch.equal(torch.get_rng_state(), before)
        return sent

    assert upload(1) == upload(2)
    assert upload(1) != upload(1, seed=1)
    assert upload(1) != upload(1, dropout=0.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_recorded_steps_equal_launched_ones_on_a_gpu(dataset):
    found = []
    for execution in ("eager", "recorded"):
        one = replace(tuning(dropout=0.5, epochs=2, batch=4, execution=execution), device="cuda")
        found.append(Rounds(one, dataset, make_tasks(dataset)).run(1).state.weights)
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", PARTS)
def test_adapters_of_another_shape_are_refused(trained, name):
    other = replace(tuning(), bottleneck=5)
    with pytest.raises(Refused, match=r"the adapters: .* expected float32"):
        other.adapted_features(tuning().final_adapters(trained.state), trained.data.X_test)
    weights = {**trained.state.weights, name: torch.full_like(trained.state.weights[name], np.nan)}
    broken = tuning().final_adapters(replace(trained.state, weights=weights))
    with pytest.raises(Refused, match="finite"):
        tuning().adapted_features(broken, trained.data.X_test)
