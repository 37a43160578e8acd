"""A client's own training: random crops, batches, SGD against a loop in NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from fedran.core.errors import Refused  # noqa: E402
from fedran.methods.protocol import ClientData  # noqa: E402
from fedran.methods.trained.training.local_training import (  # noqa: E402
    MEAN,
    STD,
    Rows,
    Schedule,
    as_tensor,
    augment,
    batches,
    client_rows,
    cross_entropy,
    fit,
    network_input,
    seeded_random,
    set_training_mode,
    stable_seed,
)
from fedran.methods.trained.training.networks import (  # noqa: E402
    build,
    initialise,
)
from fedran.methods.trained.training.weights import (  # noqa: E402
    copy_weights,
)


def pictures(seed, n, size):
    values = np.random.default_rng(seed).integers(1, 256, (n, 3, size, size))
    return torch.tensor(values, dtype=torch.uint8)


def slowly_augmented(X, random):
    """The same draws, then one pixel after the other."""
    n, channels, h, w = X.shape
    pad = min(4, h // 8)
    dy = torch.randint(0, 2 * pad + 1, (n, 1), generator=random)[:, 0].tolist()
    dx = torch.randint(0, 2 * pad + 1, (n, 1), generator=random)[:, 0].tolist()
    flip = (torch.rand((n, 1), generator=random) < 0.5)[:, 0].tolist()
    out = np.zeros(X.shape, dtype=X.numpy().dtype)
    for i, c, y, x in np.ndindex(n, channels, h, w):
        column = w - 1 - x if flip[i] else x
        above, left = y + dy[i] - pad, column + dx[i] - pad
        if 0 <= above < h and 0 <= left < w:
            out[i, c, y, x] = X[i, c, above, left]
    return out


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n", "size"), [(5, 8), (3, 12), (2, 32), (1, 4)])
def test_crops_and_flips_pixel_by_pixel(seed, n, size):
    X = pictures(seed, n, size)
    before = X.clone()
    found = augment(X, torch.Generator().manual_seed(seed))
    np.testing.assert_array_equal(
        found.numpy(), slowly_augmented(X, torch.Generator().manual_seed(seed))
    )
    assert found.dtype == torch.uint8
    assert torch.equal(X, before)
    assert torch.equal(found, augment(X, torch.Generator().manual_seed(seed)))


@given(st.integers(0, 10**6), st.sampled_from([8, 16, 32, 40]))
@settings(max_examples=25, deadline=None)
def test_every_image_is_a_window_of_the_padded_one(seed, size):
    X = pictures(seed, 4, size)
    pad = 4 if size >= 32 else size // 8
    out = augment(X, torch.Generator().manual_seed(seed)).numpy()
    for image, found in zip(X.numpy(), out, strict=True):
        padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)))
        windows = [
            padded[:, y : y + size, x : x + size]
            for y in range(2 * pad + 1)
            for x in range(2 * pad + 1)
        ]
        assert any(
            np.array_equal(found, w) or np.array_equal(found, w[:, :, ::-1]) for w in windows
        )


def test_every_shift_and_flip_occurs_equally_often():
    X = pictures(0, 1, 8).expand(4000, 3, 8, 8)
    out = augment(X, torch.Generator().manual_seed(1)).numpy()
    _, counts = np.unique(out.reshape(4000, -1), axis=0, return_counts=True)
    assert len(counts) == 3 * 3 * 2
    assert counts.min() > 0.75 * 4000 / 18
    assert counts.max() < 1.25 * 4000 / 18


def test_gradients_flow_through_crops_to_the_pixels_that_are_seen():
    X = torch.rand((6, 3, 8, 8), generator=torch.Generator().manual_seed(0)).requires_grad_()
    augment(X, torch.Generator().manual_seed(0)).sum().backward()
    assert set(X.grad.unique().tolist()) <= {0.0, 1.0}
    assert float(X.grad.mean()) > 0.7


def test_features_are_left_alone_and_draw_nothing():
    X, random = torch.ones(4, 9), torch.Generator().manual_seed(3)
    before = random.get_state()
    assert augment(X, random) is X
    assert torch.equal(random.get_state(), before)


def test_pixels_become_inputs_of_mean_0_and_spread_1():
    X = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    by_hand = (X / 255.0 - np.array(MEAN)) / np.array(STD)
    found = network_input(as_tensor(X, "cpu")).numpy()
    np.testing.assert_allclose(found, by_hand.transpose(0, 3, 1, 2), rtol=1e-5, atol=1e-6)
    features = torch.ones(2, 3)
    assert network_input(features) is features


def test_rows_of_a_client():
    X = np.arange(12, dtype=np.float64).reshape(6, 2)
    y = ["b", None, "a", "c", float("nan"), "b"]
    rows = client_rows(ClientData("k", "0", X, y), ("c", "a", "b"), "cpu")
    assert rows.codes.tolist() == [2, 1, 0, 2]
    assert rows.codes.dtype == torch.int64
    assert rows.X.dtype == torch.float32
    np.testing.assert_array_equal(rows.X.numpy(), X[[0, 2, 3, 5]])
    none = client_rows(ClientData("k", "0", X, [None] * 6), ("a",), "cpu")
    assert len(none) == 0
    assert none.X.shape == (0, 2)
    empty = client_rows(ClientData("k", "0", X[:0], np.zeros(0, int)), (), "cpu")
    assert len(empty) == 0
    assert len(rows + empty) == 4


@pytest.mark.parametrize(("label", "classes"), [(7, (1, 2)), ("1", (1, 2)), (1, ("1",)), (0, ())])
def test_labels_that_were_not_announced_are_refused(label, classes):
    data = ClientData("k", "0", np.ones((1, 2), np.float32), [label])
    with pytest.raises(Refused, match="labels: expected classes that the server announced"):
        client_rows(data, classes, "cpu")


@given(st.integers(1, 200), st.integers(2, 40), st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_batches_hold_every_row_once_and_none_is_alone(n, size, seed):
    parts = list(batches(n, size, torch.Generator().manual_seed(seed)))
    assert sorted(torch.cat(parts).tolist()) == list(range(n))
    assert all(len(p) >= 2 for p in parts) or n == 1
    assert all(len(p) == size for p in parts[:-1])
    assert len(parts[-1]) <= size + 1
    again = list(batches(n, size, torch.Generator().manual_seed(seed)))
    assert all(torch.equal(p, q) for p, q in zip(parts, again, strict=True))


def test_seeds_depend_on_every_word():
    words = [("a", 1), ("a", 2), ("b", 1), ("a", 1, 0), ("a1",), (1, "a")]
    seeds = [stable_seed(*w) for w in words]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= s < 2**63 for s in seeds)
    first, second = (torch.rand(4, generator=seeded_random("x", 3)) for _ in range(2))
    assert torch.equal(first, second)


def sgd_by_hand(W, b, X, y, schedule, random):
    """Softmax regression with momentum and weight decay, one batch after the other."""
    W, b = W.astype(np.float64), b.astype(np.float64)
    speed = None
    for _ in range(schedule.epochs):
        for batch in batches(len(y), schedule.batch, random):
            i = batch.numpy()
            scores = X[i] @ W.T + b
            p = np.exp(scores - scores.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            p[np.arange(len(i)), y[i]] -= 1
            slopes = [p.T @ X[i] / len(i), p.mean(0)]
            slopes = [g + schedule.weight_decay * w for g, w in zip(slopes, (W, b), strict=True)]
            speed = (
                slopes
                if speed is None
                else [schedule.momentum * v + g for v, g in zip(speed, slopes, strict=True)]
            )
            W, b = W - schedule.lr * speed[0], b - schedule.lr * speed[1]
    return W, b


def a_head(d, classes, seed):
    network = build("head", d)
    network.head.resize(classes)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        network.head.weight.copy_(torch.randn((classes, d), generator=random))
        network.head.bias.copy_(torch.randn(classes, generator=random))
    return network


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n", "batch"), [(1, 4), (9, 4), (12, 4), (13, 4), (30, 128)])
def test_sgd_against_numpy(seed, n, batch):
    rng = np.random.default_rng(seed)
    d, classes = int(rng.integers(1, 6)), int(rng.integers(2, 5))
    X, y = rng.standard_normal((n, d)).astype("f4"), rng.integers(classes, size=n)
    schedule = Schedule(3, batch, 0.1, 0.9, 0.05, True)
    network = a_head(d, classes, seed)
    start = [t.detach().numpy().copy() for t in (network.head.weight, network.head.bias)]
    fit(
        network,
        Rows(torch.tensor(X), torch.tensor(y)),
        lambda x, codes: cross_entropy(network(x), codes),
        schedule,
        torch.Generator().manual_seed(seed),
        "cpu",
    )
    W, b = sgd_by_hand(*start, X, y, schedule, torch.Generator().manual_seed(seed))
    np.testing.assert_allclose(network.head.weight.detach().numpy(), W, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(network.head.bias.detach().numpy(), b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("most", "expected"), [(None, 6), (0, 0), (1, 2), (2, 4), (9, 6)])
def test_an_epoch_can_be_cut_short(most, expected):
    network, seen = a_head(2, 2, 0), []

    def loss(x, codes):
        seen.append(len(x))
        return cross_entropy(network(x), codes)

    rows = Rows(torch.ones(12, 2), torch.zeros(12, dtype=torch.long))
    schedule = Schedule(2, 4, 0.1, 0.0, 0.0, False)
    fit(network, rows, loss, schedule, torch.Generator().manual_seed(0), "cpu", most)
    assert len(seen) == expected


def test_a_learning_rate_that_diverges_is_said():
    network = a_head(2, 2, 0)
    rows = Rows(torch.full((8, 2), 1e20), torch.tensor([0, 1] * 4))
    with pytest.raises(ValueError, match=r"diverged: .* lr = 1e\+20; lower lr"):
        fit(
            network,
            rows,
            lambda x, codes: cross_entropy(network(x), codes),
            Schedule(2, 4, 1e20, 0.9, 0.1, False),
            torch.Generator().manual_seed(0),
            "cpu",
        )


def test_a_single_image_leaves_the_statistics_alone():
    network = build("small", 0)
    initialise(network, 0)
    network.head.resize(2)
    before = copy_weights(network)
    rows = Rows(pictures(0, 1, 8), torch.tensor([1]))

    def loss(x, codes):
        return cross_entropy(network(network_input(x)), codes)

    schedule = Schedule(2, 4, 0.1, 0.9, 0.0, True)
    fit(network, rows, loss, schedule, torch.Generator().manual_seed(0), "cpu")
    after = copy_weights(network)
    for name in before:
        if "running_" in name:
            assert torch.equal(before[name], after[name])
    assert not torch.equal(before["head.bias"], after["head.bias"])
    set_training_mode(network, 2)
    assert all(m.training for m in network.modules())


def test_statistics_follow_the_batches():
    """BatchNorm's running mean: 0.9 x before + 0.1 x the batch's, by hand for the first layer."""
    network = build("small", 0)
    initialise(network, 0)
    network.head.resize(2)
    X = pictures(1, 6, 8)
    with torch.no_grad():
        seen = network.body.layers[0][0](network_input(X)).numpy()
    rows = Rows(X, torch.tensor([0, 1] * 3))
    fit(
        network,
        rows,
        lambda x, codes: cross_entropy(network(network_input(x)), codes),
        Schedule(1, 6, 1e-9, 0.0, 0.0, False),
        torch.Generator().manual_seed(0),
        "cpu",
    )
    norm = network.body.layers[0][1]
    np.testing.assert_allclose(norm.running_mean, 0.1 * seen.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    variance = seen.transpose(1, 0, 2, 3).reshape(32, -1).var(1, ddof=1)
    np.testing.assert_allclose(norm.running_var, 0.9 + 0.1 * variance, rtol=1e-4)
