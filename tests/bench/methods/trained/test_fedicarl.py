"""FediCaRL: herding, a buffer that never overflows, the nearest mean of exemplars."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedran.core.errors import Refused
from fedran_bench.methods.protocol import ClientData, Spec
from fedran_bench.methods.trained.fedicarl import herd, quotas
from fedran_bench.methods.trained.local_training import ClientRound, seeded_random
from fedran_bench.methods.trained.messages import (
    pack_tensors,
)
from fedran_bench.methods.trained.rows import Rows
from fedran_bench.methods.trained.weights import (
    student_network,
    teacher_network,
)
from helpers.bench.toy_training import Rounds, make_tasks, quick, saved


@pytest.fixture(scope="module")
def stream(dataset):
    return make_tasks(dataset)


@given(st.integers(1, 12), st.integers(0, 40), st.integers(1, 6), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_herding_takes_the_best_row_at_every_step(n, count, d, seed):
    X = np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)
    found = herd(torch.tensor(X), count).tolist()
    assert len(found) == len(set(found)) == min(n, count)
    target, chosen = X.astype(np.float64).mean(0), []
    for row in found:
        left = [i for i in range(n) if i not in chosen]
        distance = {i: np.linalg.norm(target - X[[*chosen, i]].mean(0)) for i in left}
        assert distance[row] <= min(distance.values()) + 1e-5
        chosen.append(row)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(0, 3000))
def test_quotas_are_fair_and_add_up(rows, size):
    found = quotas(rows, size)
    assert sum(found) == min(size, sum(rows))
    assert all(0 <= given <= n for given, n in zip(found, rows, strict=True))
    unfilled = [given for given, n in zip(found, rows, strict=True) if given < n]
    if unfilled:
        assert max(unfilled) - min(unfilled) <= 1
        assert max(found) <= max(unfilled) + 1


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=5),
    st.integers(1, 25),
    st.integers(0, 10**6),
)
@settings(max_examples=40, deadline=None)
def test_the_buffer_never_overflows_and_is_balanced(counts, memory_size, seed):
    """``counts``: of every task, how many rows the client has of each of its classes."""
    rng = np.random.default_rng(seed)
    method = quick("fedicarl", memory_size=memory_size, n_rounds=1, epochs=1)
    names = iter(range(99))
    tasks = [{next(names): n for n in sizes} for sizes in counts]
    state = method.init(Spec(3, tuple(tuple(t) for t in tasks), ("c",)), 0)
    memory, own = None, {}
    for t, sizes in enumerate(tasks):
        y = np.repeat(list(sizes), list(sizes.values())).astype(int)
        X = rng.standard_normal((len(y), 3)).astype(np.float32)
        own.update({c: X[y == c] for c in sizes if sizes[c]})
        for r in range(2):
            data = ClientData("c", str(t), X, y)
            message = method.broadcast(state, t, r)
            memory, sent = method.client(memory, message, data, 0)
            state = method.aggregate(state, t, r, {"c": sent})
        kept, codes = (memory.get(n, torch.zeros(0)) for n in ("exemplars", "exemplar_codes"))
        assert len(kept) == len(codes) <= memory_size
        for c, rows in own.items():
            mine = kept[codes == c].numpy()
            assert memory_size // len(own) <= len(mine) or len(mine) == len(rows)
            assert {r.tobytes() for r in mine} <= {r.tobytes() for r in rows}
            assert len({r.tobytes() for r in mine}) == len(mine)
        assert {int(c) for c in codes} <= set(own)


def test_new_classes_are_herded_under_the_final_model(dataset, stream):
    method = quick("fedicarl", network="small", memory_size=6)
    rounds = Rounds(method, dataset, stream).run(1)
    data, memory = rounds.rows(0, 1), rounds.cstates["client-1"]
    embedded = method.embed(rounds.state, data.X)
    unit = embedded / np.linalg.norm(embedded, axis=1, keepdims=True)
    expected = []
    for c in (0, 1):
        where = np.flatnonzero(data.y == c)
        expected += where[herd(torch.tensor(unit[where]), 3).numpy()].tolist()
    found = memory["exemplars"].numpy().transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(found, data.X[expected])
    assert memory["exemplar_codes"].tolist() == data.y[expected].tolist()


@pytest.mark.parametrize("network", ["head", "small"])
def test_the_class_with_the_nearest_mean_of_exemplars_is_predicted(dataset, stream, network):
    method = quick("fedicarl", network=network, memory_size=10)
    rounds = Rounds(method, dataset, stream).run(2)
    seen = []

    def unit(X):
        Z = X if network == "head" else method.embed(rounds.state, X)
        return Z / np.linalg.norm(Z, axis=1, keepdims=True)

    for memory in rounds.cstates.values():
        X = memory["exemplars"].numpy()
        seen.append(
            (X if network == "head" else X.transpose(0, 2, 3, 1), memory["exemplar_codes"].numpy())
        )
    X, codes = (np.concatenate(parts) for parts in zip(*seen, strict=True))
    means = np.stack([unit(X)[codes == c].mean(0) for c in range(4)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    test = rounds.data.X_test
    distance = np.linalg.norm(unit(test)[:, None] - means[None], axis=2)
    np.testing.assert_array_equal(method.predict(rounds.state, test), distance.argmin(1))
    np.testing.assert_allclose(rounds.state.extra["means"].numpy(), means, rtol=1e-4, atol=1e-5)


def test_logits_predict_until_the_first_closing_round(dataset, stream):
    method = quick("fedicarl")
    rounds = Rounds(method, dataset, stream).run(1)
    rounds.one(1, 0)
    W, b = (rounds.state.weights[n].numpy() for n in ("head.weight", "head.bias"))
    by_hand = np.argmax(dataset.X_test @ W.T + b, axis=1)
    np.testing.assert_array_equal(method.predict(rounds.state, dataset.X_test), by_hand)


def client_round(seed, n_old, n_new=4):
    new = Rows(torch.full((n_new, 2), -1.0), torch.full((n_new,), 9))
    memory = {
        "exemplars": torch.arange(2.0 * n_old).reshape(n_old, 2),
        "exemplar_codes": torch.arange(n_old),
    }
    return ClientRound(1, 0, 1, (), {}, {}, new, memory, seeded_random(seed))


@pytest.mark.parametrize("n_old", [3, 8, 9, 50])
def test_published_fedicarl_draws_old_rows_in_every_round(n_old):
    method = quick("fedicarl", flavour="as_published", memory_size=8)
    drawn = []
    for seed in range(40):
        rows = method.training_rows(client_round(seed, n_old))
        assert len(rows) == 4 + min(8, n_old)
        codes = rows.codes[4:].tolist()
        assert len(set(codes)) == len(codes)
        assert torch.equal(rows.X[4:, 0], 2.0 * rows.codes[4:])
        drawn.append(tuple(sorted(codes)))
    assert set().union(*drawn) == set(range(n_old))
    assert len(set(drawn)) == 1 if n_old <= 8 else len(set(drawn)) > 5
    first, again = (method.training_rows(client_round(0, n_old)).X for _ in range(2))
    assert torch.equal(first, again)


def test_published_fedicarl_keeps_every_old_row(dataset, stream):
    rounds = Rounds(quick("fedicarl", flavour="as_published", memory_size=2), dataset, stream)
    for t in range(3):
        rounds.task(t)
        for k, memory in enumerate(rounds.cstates.values()):
            rows = np.concatenate([stream.tasks[i].rows[k] for i in range(t + 1)])
            np.testing.assert_array_equal(memory["exemplars"].numpy(), dataset.X_train[rows])
            assert memory["exemplar_codes"].tolist() == dataset.y_train[rows].tolist()
    assert "means" not in rounds.state.extra
    W, b = (rounds.state.weights[n].numpy() for n in ("head.weight", "head.bias"))
    by_hand = np.argmax(dataset.X_test @ W.T + b, axis=1)
    np.testing.assert_array_equal(rounds.method.predict(rounds.state, dataset.X_test), by_hand)


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_of_fedicarl_against_numpy(seed):
    rng = np.random.default_rng(seed)
    d, known, classes, n = 4, 2, 5, 6
    W, b = rng.standard_normal((classes, d)), rng.standard_normal(classes)
    X, y = rng.standard_normal((n, d)), rng.integers(classes, size=n)

    def tensors(rows):
        weights = {"head.weight": W[:rows] + (rows == known), "head.bias": b[:rows]}
        return {k: torch.tensor(v, dtype=torch.float32) for k, v in weights.items()}

    work = client_round(0, 1)
    work.known = known
    work.network = student_network("head", tensors(classes), "cpu")
    work.teacher = teacher_network("head", tensors(known), "cpu")
    method = quick("fedicarl")
    found = method.loss(work, torch.tensor(X, dtype=torch.float32), torch.tensor(y)).detach()

    def log_softmax(x):
        return x - np.log(np.exp(x).sum(1, keepdims=True))

    logits, soft = X @ W.T + b, X @ (W[:known] + 1).T + b[:known]
    value = -log_softmax(logits)[np.arange(n), y].mean()
    p = np.exp(log_softmax(soft / 2))
    value -= (p * log_softmax(logits[:, :known] / 2)).sum(1).mean()
    assert float(found) == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"held": torch.tensor([0])}, "closing: expected class numbers and sums"),
        ({"sums": torch.ones(1, 12)}, "closing: expected class numbers and sums"),
        ({"held": torch.ones(1), "sums": torch.ones(1, 12)}, "closing: expected class numbers"),
        ({"held": torch.tensor([[0]]), "sums": torch.ones(1, 12)}, "closing: expected class"),
        ({"held": torch.tensor([0]), "sums": torch.ones(1, 11)}, r"sums: expected float32 \[1, 12"),
        ({"held": torch.tensor([0]), "sums": torch.ones(2, 12)}, r"sums: expected float32 \[1, 12"),
        ({"held": torch.tensor([0]), "sums": torch.ones(1, 12).long()}, "sums: expected float32"),
        ({"held": torch.tensor([2]), "sums": torch.ones(1, 12)}, "held: .*numbers below 2"),
        ({"held": torch.tensor([-1]), "sums": torch.ones(1, 12)}, "held: .*numbers below 2"),
        ({"held": torch.tensor([0]), "sums": torch.full((1, 12), np.nan)}, "sums: expected finite"),
    ],
)
def test_malformed_class_sums_are_refused_and_change_nothing(dataset, stream, part, words):
    method = quick("fedicarl")
    rounds = Rounds(method, dataset, stream)
    for r in range(method.n_rounds):
        rounds.one(0, r)
    good = rounds.uploads(0, method.n_rounds)
    before = saved(rounds)
    with pytest.raises(Refused, match=words):
        method.aggregate(
            rounds.state,
            0,
            method.n_rounds,
            {**good, "client-2": pack_tensors("closing", {}, part)},
        )
    assert saved(rounds) == before
