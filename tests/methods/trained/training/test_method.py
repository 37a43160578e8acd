"""Federated averaging behind the protocol: who takes part, what is refused, what resumes."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.toy_training import Rounds, make_images, make_tasks, quick, same

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402

from fedran.bench.run.checkpoint import Checkpoint  # noqa: E402
from fedran.bench.run.runner import Run, run  # noqa: E402
from fedran.core.errors import Refused  # noqa: E402
from fedran.data.stream import Stream, Task  # noqa: E402
from fedran.methods.trained.training.messages import (  # noqa: E402
    pack_tensors,
    unpack_tensors,
)
from fedran.wire.container import unpack  # noqa: E402
from fedran.wire.validation import FILE_LIMITS  # noqa: E402

KEYS = ("finetune", "fedlwf", "fedewc", "fedicarl", "target")
NAMED = [(key, {}) for key in KEYS] + [
    (key, {"network": "small"}) for key in ("finetune", "fedewc", "fedicarl")
]


@pytest.fixture(scope="module")
def dataset():
    return make_images()


@pytest.fixture(scope="module")
def stream(dataset):
    return make_tasks(dataset)


def model(blob, kind="local-model"):
    return unpack_tensors(kind, blob, "cpu")


@pytest.mark.parametrize("network", ["head", "small"])
@pytest.mark.parametrize("averaging", ["weighted", "unweighted"])
@pytest.mark.parametrize("n", [2, 3, 7])
def test_clients_that_are_alike_average_to_one_of_them(dataset, stream, network, averaging, n):
    method = quick("finetune", network=network, averaging=averaging, n_rounds=1)
    rounds = Rounds(method, dataset, stream)
    message = method.broadcast(rounds.state, 0, 0)
    sent = [method.client(None, message, rounds.rows(0, 0), 0)[1] for _ in range(n)]
    assert len(set(sent)) == 1
    state = method.aggregate(rounds.state, 0, 0, {f"client-{k}": b for k, b in enumerate(sent)})
    assert same(state.weights, model(sent[0]).tensors)


@pytest.mark.parametrize("averaging", ["weighted", "unweighted"])
def test_the_average_by_hand(dataset, averaging):
    rows = np.flatnonzero(np.isin(dataset.y_train, (0, 1)))
    stream = Stream((Task((0, 1), (rows[:2], rows[2:9], rows[9:10])),), {})
    rounds = Rounds(quick("finetune", network="small", averaging=averaging), dataset, stream)
    sent = rounds.one(0, 0)
    found = [model(b) for b in sent.values()]
    assert [m.header.integer("rows") for m in found] == [2, 7, 1]
    shares = np.array([2, 7, 1]) / 10 if averaging == "weighted" else np.ones(3) / 3
    for name, tensor in rounds.state.weights.items():
        parts = np.stack([m.tensors[name].numpy().astype(np.float64) for m in found])
        by_hand = np.tensordot(shares, parts, 1)
        np.testing.assert_allclose(tensor.numpy(), by_hand, rtol=1e-5, atol=1e-6)


def test_everything_travels_but_the_counters(dataset, stream):
    rounds = Rounds(quick("finetune", network="small"), dataset, stream)
    sent = model(rounds.one(0, 0)["client-0"]).tensors
    assert {n.rsplit(".", 1)[1] for n in sent} == {"weight", "bias", "running_mean", "running_var"}
    assert sent["head.weight"].shape == (2, 64)


@pytest.mark.parametrize("averaging", ["weighted", "unweighted"])
@pytest.mark.parametrize("key", KEYS)
def test_a_client_without_rows_is_left_out(dataset, stream, key, averaging):
    empty = np.zeros(0, np.int64)
    tasks = [Task(t.classes, (t.rows[0], empty, t.rows[2])) for t in stream.tasks[:2]]
    less = [Task(t.classes, (t.rows[0], t.rows[2])) for t in stream.tasks[:2]]
    method = quick(key, averaging=averaging)
    rounds = Rounds(method, dataset, Stream(tuple(tasks), {}))
    alone = Rounds(method, dataset, Stream(tuple(less), {}))
    alone.clients = ("client-0", "client-2")
    alone.cstates = dict.fromkeys(alone.clients)
    for t in range(2):
        for r in range(method.rounds(t)):
            sent = rounds.one(t, r)
            alone.one(t, r)
            assert len(sent["client-1"]) < 250
    assert same(rounds.state.weights, alone.state.weights)


def test_a_round_in_which_nobody_has_rows_changes_nothing(dataset):
    empty = np.zeros(0, np.int64)
    stream = Stream((Task((0, 1), (empty, empty)),), {})
    rounds = Rounds(quick("finetune"), dataset, stream)
    rounds.one(0, 0)
    before = method_dump(rounds)
    rounds.one(0, 1)
    assert method_dump(rounds) == before


def method_dump(rounds):
    return rounds.method.dump(rounds.state)


@pytest.mark.parametrize("key", ["finetune", "fedlwf"])
def test_half_of_the_clients_take_part(dataset, key):
    clients = tuple(f"client-{k}" for k in range(6))
    method = quick(key, participation=0.5, n_rounds=30)
    drawn = [method.participants(0, r, clients, 0) for r in range(30)]
    assert all(len(d) == 3 and list(d) == sorted(set(d)) for d in drawn)
    assert set().union(*drawn) == set(clients)
    assert len(set(drawn)) > 5
    assert drawn == [method.participants(0, r, clients, 0) for r in range(30)]
    assert drawn != [method.participants(0, r, clients, 1) for r in range(30)]
    assert drawn != [method.participants(1, r, clients, 0) for r in range(30)]
    assert method.participants(0, 30, clients, 0) == clients
    assert quick(key).participants(0, 0, clients, 0) == clients


@pytest.mark.parametrize(("share", "n", "count"), [(0.01, 5, 1), (0.34, 3, 2), (1.0, 5, 5)])
def test_at_least_one_takes_part(share, n, count):
    clients = tuple(map(str, range(n)))
    assert len(quick("finetune", participation=share).participants(0, 0, clients, 0)) == count


@pytest.mark.parametrize("key", ["finetune", "fedlwf"])
def test_those_who_do_not_take_part_have_no_bytes(dataset, key):
    stream = make_tasks(dataset, n_clients=6)
    method = quick(key, participation=0.5, n_rounds=1)
    said = []
    result = run(Run(key, method, dataset, stream), progress=said.append)
    assert len(said) == Run(key, method, dataset, stream).steps
    for t, task in enumerate(result.tasks):
        clients = tuple(f"client-{k}" for k in range(6))
        asked = method.participants(t, 0, clients, 0)
        absent = [k for k, c in enumerate(clients) if c not in asked]
        assert len(absent) == 3
        if key == "finetune":
            assert all(task.bytes_up[k] == task.bytes_down[k] == 0 for k in absent)
            assert all(task.bytes_up[k] > 0 for k in range(6) if k not in absent)
        else:
            closing = min(task.bytes_up)
            assert all(0 < task.bytes_up[k] == closing < 250 for k in absent)
            assert all(task.bytes_up[k] > closing for k in range(6) if k not in absent)
    again = run(Run(key, method, dataset, stream))
    assert again.acc == result.acc
    assert [t.bytes_up for t in again.tasks] == [t.bytes_up for t in result.tasks]


@pytest.mark.parametrize("key", KEYS)
def test_unknown_labels_are_refused(dataset, stream, key):
    method = quick(key)
    rounds = Rounds(method, dataset, stream)
    message = method.broadcast(rounds.state, 0, 0)
    for label in (5, "0", 77):
        data = replace(rounds.rows(0, 0), y=[label] * len(rounds.rows(0, 0).y))
        with pytest.raises(Refused, match="labels: expected classes that the server announced"):
            method.client(None, message, data, 0)


def altered(blob, change):
    found = model(blob)
    fields = {n: v for n, v in found.header.fields.items() if n != "kind"}
    return pack_tensors("local-model", fields, change(found.tensors))


def with_nan(tensors):
    name = min(tensors)
    spoiled = tensors[name].clone()
    spoiled.view(-1)[0] = float("nan")
    return {**tensors, name: spoiled}


SPOILED = [
    (with_nan, "the model of client-1: expected finite values, got NaN"),
    (lambda t: {**t, "more": torch.ones(1)}, "the model of client-1: .* with more"),
    (lambda t: {n: v for n, v in t.items() if n != "head.bias"}, "without head.bias"),
    (lambda t: {**t, "head.bias": torch.ones(9)}, r"head.bias: expected float32 \[2\]"),
    (lambda t: {**t, "head.bias": torch.ones(2).long()}, "got torch.int64"),
    (lambda t: {}, "the model of client-1: expected the"),
]


@pytest.mark.parametrize(("change", "words"), SPOILED)
@pytest.mark.parametrize("key", KEYS)
def test_spoiled_models_are_refused_and_nothing_is_kept(dataset, stream, key, change, words):
    rounds = Rounds(quick(key, n_rounds=1), dataset, stream)
    sent = rounds.uploads(0, 0)
    before = method_dump(rounds)
    spoiled = {**sent, "client-1": altered(sent["client-1"], change)}
    with pytest.raises(Refused, match=words):
        rounds.method.aggregate(rounds.state, 0, 0, spoiled)
    assert method_dump(rounds) == before
    rounds.state = rounds.method.aggregate(rounds.state, 0, 0, sent)
    assert method_dump(rounds) != before


def test_the_model_of_another_network_is_refused(dataset, stream):
    small = Rounds(quick("finetune", network="small"), dataset, stream)
    head = Rounds(quick("finetune"), dataset, stream)
    before = method_dump(small)
    with pytest.raises(Refused, match="the model of client-0: expected the 17 tensors"):
        small.method.aggregate(small.state, 0, 0, head.uploads(0, 0))
    assert method_dump(small) == before


@pytest.mark.parametrize("rows", [-1, 1.5, "3", None, True])
def test_a_row_count_that_is_none_is_refused(dataset, stream, rows):
    rounds = Rounds(quick("finetune"), dataset, stream)
    sent = rounds.uploads(0, 0)
    sent["client-0"] = pack_tensors("local-model", {"rows": rows}, model(sent["client-0"]).tensors)
    with pytest.raises(Refused, match="rows: expected an integer"):
        rounds.method.aggregate(rounds.state, 0, 0, sent)


@pytest.mark.parametrize("key", KEYS)
def test_a_learning_rate_that_diverges_is_said(dataset, stream, key):
    rounds = Rounds(quick(key, lr=1e30, weight_decay=1.0, epochs=9), dataset, stream)
    with pytest.raises(ValueError, match=r"training diverged: .*lr = 1e\+30; lower lr"):
        rounds.run(1)


def kept(path):
    """The states of the server and of all clients in a checkpoint."""
    found = unpack(path.read_bytes(), FILE_LIMITS)
    return {n: t.tobytes() for n, t in found.tensors.items()}


@pytest.mark.parametrize(("key", "more"), NAMED)
def test_a_run_goes_on_after_any_round(dataset, stream, tmp_path, key, more):
    short = Stream(stream.tasks[:2], {})
    job = Run(key, quick(key, epochs=1, **more), dataset, short)
    straight = run(job, checkpoint=Checkpoint(tmp_path / "straight", seconds=0))
    rounds, n = job.method.rounds(0), short.n_clients
    for at in (n + 1, rounds * n + 1, job.steps - 2):
        count = [0]

        def stop(_, at=at, count=count):
            count[0] += 1
            if count[0] == at:
                raise KeyboardInterrupt

        checkpoint = Checkpoint(tmp_path / "other", seconds=0)
        with pytest.raises(KeyboardInterrupt):
            run(job, progress=stop, checkpoint=checkpoint)
        assert checkpoint.path.exists()
        said = []
        resumed = run(job, progress=said.append, checkpoint=checkpoint)
        assert any("done before" in s for s in said)
        assert len(said) == job.steps
        assert kept(checkpoint.path) == kept(tmp_path / "straight")
        assert (resumed.acc, resumed.drift) == (straight.acc, straight.drift)
        assert [t.bytes_up for t in resumed.tasks] == [t.bytes_up for t in straight.tasks]
        assert [t.bytes_down for t in resumed.tasks] == [t.bytes_down for t in straight.tasks]
        checkpoint.remove()


@pytest.mark.parametrize(("key", "more"), NAMED)
def test_the_seed_decides_and_nothing_else(dataset, stream, key, more):
    found = []
    for seed, world in ((0, 1), (0, 2), (1, 1)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(world)
            rounds = Rounds(quick(key, epochs=1, **more), dataset, stream, seed)
            found.append(method_dump(rounds.run(2)))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("network", ["head", "small"])
def test_what_a_client_draws_depends_on_seed_task_round_and_name(dataset, stream, network):
    method = quick("finetune", network=network, batch=2)
    rounds = Rounds(method, dataset, stream)
    found = model(method.broadcast(rounds.state, 0, 0), "global-model")
    fields = {n: v for n, v in found.header.fields.items() if n != "kind"}

    def sent(name="client-0", seed=0, **more):
        message = pack_tensors("global-model", {**fields, **more}, found.tensors)
        return method.client(None, message, replace(rounds.rows(0, 0), client=name), seed)[1]

    others = [sent(), sent("client-1"), sent(seed=1), sent(task=1), sent(round=1)]
    assert len(set(others)) == 5
    assert sent() == others[0]


def test_the_order_in_which_clients_arrive_does_not_matter(dataset, stream):
    method = quick("finetune", network="small")
    rounds = Rounds(method, dataset, stream)
    sent = rounds.uploads(0, 0)
    one = method.aggregate(rounds.state, 0, 0, sent).weights
    other = method.aggregate(rounds.state, 0, 0, dict(reversed(sent.items()))).weights
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("key", KEYS)
def test_labels_can_be_words(stream, key):
    words = ["ant", "bee", "Ünal", "1", "cat dog", "f"]
    numbered, named = make_images(), make_images(names=words)
    tasks = tuple(Task(tuple(words[c] for c in t.classes), t.rows) for t in stream.tasks)
    method = quick(key)
    one = Rounds(method, numbered, stream).run(2)
    other = Rounds(method, named, Stream(tasks, {})).run(2)
    assert same(one.state.weights, other.state.weights)
    found = method.predict(other.state, other.data.X_test)
    expected = [words[c] for c in method.predict(one.state, one.data.X_test)]
    assert found.tolist() == expected


@pytest.mark.parametrize("key", KEYS)
def test_predictions_are_the_best_scores_of_classes_seen(dataset, stream, key):
    method = quick(key)
    rounds = Rounds(method, dataset, stream).run(2)
    assert set(method.predict(rounds.state, rounds.data.X_test)) <= {0, 1, 2, 3}
    assert method.predict(rounds.state, rounds.data.X_test[:0]).shape == (0,)
    assert method.predict(rounds.state, rounds.data.X_test[:1]).shape == (1,)


def test_a_head_predicts_by_its_logits(dataset, stream):
    rounds = Rounds(quick("finetune"), dataset, stream).run(2)
    W, b = (rounds.state.weights[n].numpy() for n in ("head.weight", "head.bias"))
    by_hand = np.argmax(dataset.X_test @ W.T + b, axis=1)
    np.testing.assert_array_equal(rounds.method.predict(rounds.state, dataset.X_test), by_hand)
    assert rounds.method.embed(rounds.state, dataset.X_test) is None


def test_a_grown_head_starts_from_the_old_one(dataset, stream):
    rounds = Rounds(quick("finetune"), dataset, stream).run(1)
    old = rounds.state.weights
    wide = model(rounds.method.broadcast(rounds.state, 1, 0), "global-model")
    assert wide.header.fields["classes"] == [0, 1, 2, 3]
    assert wide.header.integer("known") == 2
    assert torch.equal(wide.tensors["model/head.weight"][:2], old["head.weight"])
    assert not wide.tensors["model/head.bias"][2:].any()


def test_new_logits_leave_the_old_rows_of_a_head_alone(dataset, stream):
    old = {}
    for logits in ("new", "all"):
        method = quick("finetune", logits=logits, weight_decay=0.0)
        rounds = Rounds(method, dataset, stream).run(1)
        before = rounds.state.weights["head.weight"]
        rounds.task(1)
        old[logits] = torch.equal(rounds.state.weights["head.weight"][:2], before)
    assert old == {"new": True, "all": False}


def test_training_starts_from_a_file(dataset, stream, tmp_path):
    donor = Rounds(quick("finetune", network="small"), dataset, stream, seed=5).run(1)
    path = str(tmp_path / "body.safetensors")
    save_file({n: t.contiguous() for n, t in donor.state.weights.items()}, path)
    method = quick("finetune", network="small", weights=path)
    assert method.name == "Finetune (from weights)"
    assert quick("finetune", network="small").name == "Finetune (from scratch)"
    rounds = Rounds(method, dataset, stream)
    first = model(method.broadcast(rounds.state, 0, 0), "global-model").tensors
    bodies = [n for n in donor.state.weights if n.startswith("body.")]
    assert len(bodies) == 15
    assert all(torch.equal(first[f"model/{n}"], donor.state.weights[n]) for n in bodies)
    assert not torch.equal(first["model/head.weight"], donor.state.weights["head.weight"])
    job, other = (
        Run("finetune", m, dataset, stream) for m in (method, quick("finetune", network="small"))
    )
    assert job.hashes["weights"] == method.weights_hash
    assert job.run_id != other.run_id


def test_a_missing_file_of_weights_is_said(dataset, stream):
    method = quick("finetune", network="small", weights="/nowhere/w.safetensors")
    with pytest.raises(FileNotFoundError, match=r"/nowhere/w.safetensors: no such file"):
        Rounds(method, dataset, stream)


@pytest.mark.parametrize("key", KEYS[1:])
def test_hostile_closing_messages_are_refused(dataset, stream, key):
    method = quick(key)
    assert method.rounds(0) == method.n_rounds + 1
    rounds = Rounds(method, dataset, stream)
    for r in range(method.n_rounds):
        local = rounds.one(0, r)
    before = method_dump(rounds)
    for blob in (b"", b"x" * 50, local["client-0"]):
        with pytest.raises(Refused):
            method.aggregate(rounds.state, 0, method.n_rounds, {"client-0": blob})
        assert method_dump(rounds) == before


def test_training_learns_what_it_is_shown(dataset):
    stream = make_tasks(dataset, n_tasks=1)
    for more in ({"network": "small"}, {"lr": 0.5, "n_rounds": 10}):
        rounds = Rounds(quick("finetune", **{"n_rounds": 5, "epochs": 4, **more}), dataset, stream)
        rounds.run(1)
        found = rounds.method.predict(rounds.state, rounds.data.X_test)
        assert np.mean(found == rounds.data.y_test) > 0.8
