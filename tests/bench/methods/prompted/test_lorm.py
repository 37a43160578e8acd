"""LoRM: merges in closed form, alternating factors, and the network that predicts."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fedran.backbones.vit import load_vit  # noqa: E402
from fedran_bench.methods.prompted.lora import unpack_symmetric  # noqa: E402
from fedran_bench.methods.prompted.lorm import KINDS, LoRM, damped, divide, merge  # noqa: E402
from fedran_bench.methods.trained.fedavg import CLOSING, GLOBAL  # noqa: E402
from fedran_bench.methods.trained.messages import unpack_tensors  # noqa: E402
from helpers.bench.tiny_vit import DEPTH, WIDTH, tiny_vit  # noqa: E402
from helpers.bench.toy_training import Rounds, make_images, make_tasks  # noqa: E402


def method(**settings):
    few = {"n_rounds": 2, "epochs": 1, "rank": 2, "lr": 0.02, **settings}
    return LoRM(weights=tiny_vit(), **few)


@pytest.fixture(scope="module")
def dataset():
    return make_images()


@pytest.fixture(scope="module")
def rounds(dataset):
    return Rounds(method(), dataset, make_tasks(dataset)).run(2)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rank", [None, 2])
def test_merged_matrices_are_least_squares_solutions(seed, rank):
    """Against lstsq on the stacked inputs of all clients, with and without a shared factor."""
    rng = np.random.default_rng(seed)
    m, out, inputs = 5, 3, [rng.standard_normal((int(n), 5)) for n in rng.integers(6, 20, 3)]
    down = None if rank is None else rng.standard_normal((rank, m))
    matrices = [rng.standard_normal((out, rank or m)) for _ in inputs]
    seen = [X if down is None else X @ down.T for X in inputs]
    goal = np.concatenate([X @ M.T for X, M in zip(seen, matrices, strict=True)])
    wanted = np.linalg.lstsq(np.concatenate(seen), goal, rcond=None)[0].T
    found = merge(
        [torch.tensor(M) for M in matrices],
        [torch.tensor(X.T @ X) for X in inputs],
        None if down is None else torch.tensor(down),
    )
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("condition", [1e2, 1e8, 1e11, np.inf])
def test_division_equals_the_pseudo_inverse(condition):
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((2, 6, 6)))[0]
    scales = np.geomspace(1, 1 / condition, 6) if condition < np.inf else np.eye(6)[:4].sum(0)
    G = torch.tensor((Q * scales) @ np.swapaxes(Q, 1, 2))
    P = torch.tensor(rng.standard_normal((2, 3, 6))) @ G
    wanted = P @ torch.linalg.pinv(G, hermitian=True, rtol=1e-13)
    torch.testing.assert_close(divide(P, G), wanted, atol=1e-4, rtol=1e-4)


def test_rounds_train_the_factors_in_turn(dataset):
    rounds = Rounds(method(n_rounds=3), dataset, make_tasks(dataset))
    rounds.one(0, 0)
    before = dict(rounds.state.weights)
    for round_, trained, resting in ((1, "down", "up"), (2, "up", "down")):
        rounds.one(0, round_)
        after = rounds.state.weights
        for kind in KINDS:
            assert torch.equal(after[f"{resting}/{kind}"], before[f"{resting}/{kind}"])
            assert not torch.equal(after[f"{trained}/{kind}"], before[f"{trained}/{kind}"])
        before = dict(after)


def test_clients_send_damped_grams_under_what_they_trained(rounds, monkeypatch):
    """The input of the first MLP and of the head, against sums over tokens of a changed network."""
    monkeypatch.setattr("fedran_bench.methods.prompted.lorm.ROWS_PER_PASS", 4)
    one = rounds.method
    message = one.broadcast(rounds.state, 2, 0)
    received = unpack_tensors(GLOBAL, message, "cpu")
    client = one._client_round(received, {}, rounds.rows(2, 0), 0)
    sent, _ = one.train(client)
    network = load_vit(tiny_vit())[0]
    for kind in KINDS:
        for i in range(DEPTH):
            change = sent[f"up/{kind}"][i] @ client.weights[f"down/{kind}"][i]
            network.get_parameter(f"blocks.{i}.{kind}.weight").data += change
    tokens, block = client.rows.X.tokens, network.blocks[0]
    inner = block.norm2(tokens + block.attn(block.norm1(tokens)))
    wanted = sum(torch.outer(row, row) for image in inner for row in image)
    found = unpack_symmetric(sent["gram/mlp.fc1"][0], WIDTH)
    torch.testing.assert_close(found, damped(wanted, 0.5), atol=1e-3, rtol=1e-4)
    features = network.encode(tokens)[:, 0]
    found = unpack_symmetric(sent["gram/head"], WIDTH)
    torch.testing.assert_close(found, damped(features.T @ features, 0.5), atol=1e-3, rtol=1e-4)


def adamw(start, loss_of, rates, decay):
    """AdamW written out: the decay acts on the tensors and not on the gradients."""
    tensors = dict(start)
    first, second = ({n: torch.zeros_like(t) for n, t in start.items()} for _ in range(2))
    for step, rate in enumerate(rates, 1):
        leaves = {n: t.clone().requires_grad_() for n, t in tensors.items()}
        gradients = torch.autograd.grad(loss_of(leaves), list(leaves.values()))
        for name, g in zip(leaves, gradients, strict=True):
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g**2
            scale = (second[name] / (1 - 0.999**step)).sqrt() + 1e-8
            moved = first[name] / (1 - 0.9**step) / scale
            tensors[name] = (1 - rate * decay) * tensors[name] - rate * moved
    return tensors


def test_a_round_is_adamw_and_a_merge_of_factor_and_head(dataset):
    """The first round of the second task, with clients of 6, 5 and 5 rows."""
    rounds = Rounds(method(epochs=2, batch=64), dataset, make_tasks(dataset)).run(1)
    one, state = rounds.method, rounds.method._open_task(rounds.state, 1)
    received = unpack_tensors(GLOBAL, one.broadcast(rounds.state, 1, 0), "cpu")
    rates, sent = [0.02 * one.rate_share(epoch) for epoch in range(2)], []
    for k in range(3):
        client = one._client_round(received, {}, rounds.rows(1, k), 0)
        X, codes = client.rows.X, client.rows.codes - 2

        def loss_of(leaves, X=X, codes=codes):
            features = one.features({**state.weights, **leaves}, X, 1)
            logits = features @ leaves["head.weight"].T + leaves["head.bias"]
            return -torch.log_softmax(logits, 1)[range(len(codes)), codes].mean()

        start = {f"up/{kind}": state.weights[f"up/{kind}"] for kind in KINDS}
        start |= {f"head.{x}": state.weights[f"head.{x}"][2:] for x in ("weight", "bias")}
        trained = adamw(start, loss_of, rates, one.weight_decay)
        grams = one.grams({**client.weights, **trained}, client)
        sent.append((trained, grams, len(codes)))
    rounds.one(1, 0)
    found = rounds.state.weights
    for kind, (_, n) in one.shapes().items():
        G = [unpack_symmetric(grams[f"gram/{kind}"], n) for _, grams, _ in sent]
        wanted = merge([w[f"up/{kind}"] for w, *_ in sent], G, state.weights[f"down/{kind}"])
        torch.testing.assert_close(found[f"up/{kind}"], wanted, atol=1e-4, rtol=1e-3)
    G = [unpack_symmetric(grams["gram/head"], WIDTH).double() for _, grams, _ in sent]
    products = sum(w["head.weight"].double() @ g for (w, *_), g in zip(sent, G, strict=True))
    wanted = (products @ torch.linalg.pinv(sum(G))).float()
    torch.testing.assert_close(found["head.weight"][2:], wanted, atol=1e-4, rtol=1e-3)
    bias = sum(n * w["head.bias"] for w, _, n in sent) / sum(n for *_, n in sent)
    torch.testing.assert_close(found["head.bias"][2:], bias, atol=1e-6, rtol=1e-4)


def test_merged_changes_are_least_squares_over_the_tasks(dataset):
    rounds = Rounds(method(), dataset, make_tasks(dataset))
    one, changes, grams = rounds.method, [], []
    for t in range(2):
        rounds.one(t, 0)
        rounds.one(t, 1)
        weights = rounds.state.weights
        changes.append((weights["up/mlp.fc2"] @ weights["down/mlp.fc2"]).double())
        sent = rounds.uploads(t, 2)
        parts = [
            unpack_tensors(CLOSING, blob, "cpu").tensors["gram/mlp.fc2"] for blob in sent.values()
        ]
        grams.append(sum(unpack_symmetric(part, 2 * WIDTH) for part in parts).double())
        rounds.state = one.aggregate(rounds.state, t, 2, sent)
    merged = rounds.state.extra["merged/mlp.fc2"]
    for i in range(DEPTH):
        roots = [np.linalg.cholesky(G[i].numpy()).T for G in grams]
        goal = np.concatenate([R @ C[i].numpy().T for R, C in zip(roots, changes, strict=True)])
        wanted = np.linalg.lstsq(np.concatenate(roots), goal, rcond=None)[0].T
        np.testing.assert_allclose(merged[i], wanted, atol=1e-4)
    X = rounds.data.X_test[:4]
    weights = one.deployed(rounds.state)
    features = one.features(weights, one.embedded(X))
    np.testing.assert_allclose(features, one.embed(rounds.state, X))
    assert not np.allclose(features, one.features(rounds.state.weights, one.embedded(X), 1))
