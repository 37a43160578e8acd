"""One client's training: rows, batches, seeds, SGD against a loop in NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran_bench.methods.protocol import ClientData
from fedran_bench.methods.trained import local_training
from fedran_bench.methods.trained.local_training import (
    Schedule,
    batches,
    cross_entropy,
    epoch,
    fit,
    set_training_mode,
)
from fedran_bench.methods.trained.networks import (
    build,
    initialise,
)
from fedran_bench.methods.trained.rows import (
    Replay,
    Rows,
    augment,
    client_rows,
    network_input,
)
from fedran_bench.methods.trained.weights import (
    copy_weights,
)


def pictures(seed, n, size):
    values = np.random.default_rng(seed).integers(1, 256, (n, 3, size, size))
    return torch.tensor(values, dtype=torch.uint8)


def test_client_rows_are_the_labelled_rows():
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


@given(st.integers(1, 200), st.integers(2, 40), st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_batches_hold_every_row_once_and_at_least_two_rows(n, size, seed):
    parts = list(batches(n, size, torch.Generator().manual_seed(seed)))
    assert sorted(torch.cat(parts).tolist()) == list(range(n))
    assert all(len(p) >= 2 for p in parts) or n == 1
    assert all(len(p) == size for p in parts[:-1])
    assert len(parts[-1]) <= size + 1
    again = list(batches(n, size, torch.Generator().manual_seed(seed)))
    assert all(torch.equal(p, q) for p, q in zip(parts, again, strict=True))


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


def test_fit_raises_when_training_diverges():
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


def test_a_single_image_does_not_change_batchnorm_statistics():
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


def test_batchnorm_statistics_follow_the_batches():
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


def slow_epoch(rows, schedule, random, replay):
    """One batch after the other, each gathered and augmented by itself."""
    for batch in batches(len(rows), schedule.batch, random):
        X = augment(rows.X[batch], random) if schedule.augment else rows.X[batch]
        if replay is None:
            yield X, rows.codes[batch]
            continue
        chosen = torch.randint(len(replay.images), (replay.batch,), generator=random)
        images = replay.images[chosen]
        yield X, rows.codes[batch], augment(images, random) if schedule.augment else images


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("replayed", [0, 3])
@pytest.mark.parametrize(("n", "size", "ahead"), [(1, 2, 1), (11, 5, 32), (23, 2, 4), (24, 2, 4)])
def test_batches_drawn_ahead_are_those_drawn_one_by_one(
    n, size, ahead, replayed, moves, monkeypatch
):
    monkeypatch.setattr(local_training, "BATCHES_AHEAD", ahead)
    rows = Rows(pictures(n, n, 8), torch.arange(n))
    replay = Replay(pictures(1, 7, 8), replayed) if replayed else None
    schedule = Schedule(batch=size, augment=moves)
    one, other = (torch.Generator().manual_seed(5) for _ in range(2))
    found = list(epoch(rows, schedule, one, "cpu", replay))
    expected = list(slow_epoch(rows, schedule, other, replay))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert len(mine) == len(theirs) == 2 + bool(replayed)
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert torch.equal(one.get_state(), other.get_state())
