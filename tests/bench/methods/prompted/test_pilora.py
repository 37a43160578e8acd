"""PILoRA: distances, loss, averages of prototypes, and which pairs the network has."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fedran.backbones.vit import load_vit  # noqa: E402
from fedran_bench.methods.prompted.pilora import PILoRA, average_prototypes, distances  # noqa: E402
from fedran_bench.methods.trained.fedavg import GLOBAL  # noqa: E402
from fedran_bench.methods.trained.messages import unpack_tensors  # noqa: E402
from helpers.bench.tiny_vit import WIDTH, tiny_vit  # noqa: E402
from helpers.bench.toy_training import Rounds, make_images, make_tasks  # noqa: E402


def method(**settings):
    few = {"n_rounds": 1, "epochs": 1, "rank": 2, "lr": 0.01, "head_lr": 0.05, **settings}
    return PILoRA(weights=tiny_vit(), **few)


def unpack(message):
    return unpack_tensors(GLOBAL, message, "cpu")


@pytest.fixture(scope="module")
def dataset():
    return make_images()


@pytest.fixture(scope="module")
def stream(dataset):
    return make_tasks(dataset)


@pytest.fixture(scope="module")
def two_tasks(dataset, stream):
    return Rounds(method(), dataset, stream).run(2)


def test_distances_equal_their_definition():
    F, M = torch.randn(4, 7), torch.randn(3, 7)
    found = distances(F, M)
    for i in range(4):
        for j in range(3):
            wanted = sum((F[i, k] - M[j, k]).item() ** 2 / 7 for k in range(7)) ** 0.5
            assert abs(found[i, j] - wanted) < 1e-5
    same = F.clone().requires_grad_()
    distances(same, F.detach()).sum().backward()
    assert same.grad.isfinite().all()


@pytest.mark.parametrize("seed", range(4))
def test_prototypes_are_averaged_by_closeness_to_the_class_means(seed):
    rng = np.random.default_rng(seed)
    P, F = rng.standard_normal((2, 5, 3, 6))
    holds = rng.random((5, 3)) < 0.7
    holds[:, 2] = False  # nobody
    holds[:, 1] = np.arange(5) == 2  # one client
    old = rng.standard_normal((3, 6))
    found = average_prototypes(
        *(torch.tensor(a).float() for a in (P, F)),
        torch.tensor(holds),
        torch.tensor(old).float(),
        0.2,
    )
    for c in range(3):
        who = [k for k in range(5) if holds[k, c]]
        if not who:
            wanted = old[c]
        else:
            sums = [sum(np.sqrt(((P[k, c] - F[j, c]) ** 2).mean()) for j in who) for k in who]
            r = 1 / np.array(sums)
            scaled = (r - r.min()) / (r.max() - r.min()) if len(who) > 1 else 0 * r
            w = np.exp(scaled / 0.2)
            wanted = sum(a * P[k, c] for a, k in zip(w / w.sum(), who, strict=True))
        np.testing.assert_allclose(found[c], wanted, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_loss_has_its_four_parts(two_tasks, scale):
    rounds, one = two_tasks, method(scale=scale)
    state = rounds.state
    client = one._client_round(unpack(one.broadcast(state, 2, 0)), {}, rounds.rows(2, 0), 0)
    weights, X, codes = client.weights, client.rows.X, client.rows.codes
    assert client.known == 4
    features = one.features(weights, X, 2)
    d = distances(features, weights["head.weight"])
    wanted = 0.0
    for i, c in enumerate(codes.tolist()):
        entropy = scale * d[i, c] + torch.log(torch.exp(-scale * d[i]).sum())
        wanted += (entropy + 0.001 * d[i, c]) / len(codes)
    new = weights["down"][2]
    wanted += 0.01 * sum(abs(v) for v in new.flatten())
    for old in weights["down"][:2]:
        for part in range(2):
            wanted += 0.5 * sum(abs(a @ b) for a in old[part] for b in new[part])
    assert abs(one.loss(client, weights, X, codes) - wanted) < 1e-4


def by_hand(state, tasks, X):
    """Features of the network whose first attention has the pairs of these tasks."""
    network, preprocess = load_vit(tiny_vit())
    for t in tasks:
        for part, rows in enumerate((slice(0, WIDTH), slice(2 * WIDTH, None))):
            change = state.weights["up"][t, part] @ state.weights["down"][t, part]
            network.blocks[0].attn.qkv.weight.data[rows] += change
    with torch.no_grad():
        images = torch.stack([torch.tensor(preprocess(x)) for x in X])
        return network(images).numpy()


@pytest.mark.parametrize(
    ("flavour", "training", "inference"),
    [("corrected", (0, 1), (0, 1)), ("as_published", (1,), (0,))],
)
def test_the_pairs_in_training_and_in_inference(two_tasks, flavour, training, inference):
    one, state = method(flavour=flavour), two_tasks.state
    X = two_tasks.data.X_test[:5]
    embedded = one.embedded(X)
    assert state.weights["up"].abs().sum() > 0
    for tasks, task in ((training, 1), (inference, None)):
        found = one.features(state.weights, embedded, task)
        np.testing.assert_allclose(found, by_hand(state, tasks, X), atol=1e-4)


@pytest.mark.parametrize("flavour", ["corrected", "as_published"])
def test_a_client_sends_its_class_means_and_trains_only_what_is_new(two_tasks, flavour):
    one, rounds = method(flavour=flavour), two_tasks
    before = one._open_task(rounds.state, 2)
    client = one._client_round(unpack(one.broadcast(before, 2, 0)), {}, rounds.rows(2, 1), 0)
    sent, n = one.train(client)
    assert n == len(client.rows)
    assert sent["up"].shape == (1, 2, WIDTH, 2)
    assert sent["head.weight"].shape == (2, WIDTH)
    weights = one.combine(before, [(sent, n)])
    for name, rows in (("up", 2), ("down", 2), ("head.weight", 4)):
        assert torch.equal(weights[name][:rows], before.weights[name][:rows])
        assert not torch.equal(weights[name][rows:], before.weights[name][rows:])
    features = one.features(weights, client.rows.X, 2)
    for c in range(2):
        own = features[client.rows.codes == 4 + c]
        assert sent["counts"][c] == len(own)
        torch.testing.assert_close(sent["means"][c], own.mean(0))


def test_clients_without_rows_of_a_class_have_no_say_in_its_prototype(two_tasks):
    one = method()
    state = one._open_task(two_tasks.state, 2)
    like = one.expected_upload(state)
    sent = [({n: torch.full_like(t, v) for n, t in like.items()}, 10) for v in (1.0, 5.0)]
    sent[1][0]["counts"][0] = 0
    found = one.combine(state, sent)["head.weight"][4:]
    assert torch.equal(found[0], torch.ones(WIDTH))
    torch.testing.assert_close(found[1], torch.full((WIDTH,), 3.0))
