"""Any analytic method on a network that the clients fine-tune in task 0."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fedran  # noqa: E402
from fedran.core.errors import Refused  # noqa: E402
from fedran_bench.methods.analytic.base import AnalyticMethod  # noqa: E402
from fedran_bench.methods.fine_tuned import FineTuned  # noqa: E402
from fedran_bench.methods.protocol import Claims, ClientData  # noqa: E402
from fedran_bench.methods.registry import METHODS, make_method, settings  # noqa: E402
from fedran_bench.run.runner import PreparedJob, run  # noqa: E402
from helpers.bench.tiny_vit import WIDTH, tiny_vit  # noqa: E402
from helpers.bench.toy_training import Rounds, make_images, make_tasks  # noqa: E402

SMALL = {
    "out_features": 24,
    "rank": 6,
    "min_group": 1,
    "dummies": 3,
    "rows_per_class": 30,
    "epsilon": 1e4,
    "layers": 2,
    "members": 2,
    "gamma": 0.5,
}
ANALYTIC = [k for k, v in METHODS.items() if issubclass(v, AnalyticMethod) and k != "send-images"]


def plain(key, **more):
    names = settings(key)
    return make_method(key, {**{k: v for k, v in SMALL.items() if k in names}, **more})


def tuned(key="fedran", **task0):
    few = {"weights": tiny_vit(), "n_rounds": 2, "epochs": 2, "bottleneck": 4, "lr": 10, **task0}
    return plain(key, task0=few)


def bound_source(rounds):
    """The adapters are part of the fingerprint, and so of every upload."""
    digest = hashlib.sha256(rounds.state.adapters).hexdigest()
    return {**rounds.method.stage.source, "adapters": digest}


@pytest.fixture(scope="module")
def dataset():
    return make_images()


@pytest.fixture(scope="module")
def stream(dataset):
    return make_tasks(dataset)


@pytest.mark.parametrize("key", ANALYTIC)
def test_the_stage_is_the_same_method_on_features_of_the_adapted_network(key, dataset, stream):
    """Against the method itself on features that are computed before it starts."""
    method = tuned(key, n_rounds=1, epochs=1)
    rounds = Rounds(method, dataset, stream).run(3)
    adapters = rounds.state.adapters
    features = {
        part: method.stage.adapted_features(adapters, getattr(rounds.data, f"X_{part}"))
        for part in ("train", "test")
    }
    data = replace(dataset, X_train=features["train"], X_test=features["test"], images=None)
    inner = method.inner.bound_to(bound_source(rounds))
    alone = Rounds(inner, replace(data, test_images=None), stream).run(3)
    found = method.predict(rounds.state, rounds.data.X_test)
    assert np.array_equal(found, inner.predict(alone.state, data.X_test))
    assert np.mean(found == dataset.y_test) > 0.4
    assert method.name == f"{plain(key).name} (fine-tuned in task 0)"
    assert method.family == plain(key).family


def test_predictions_do_not_depend_on_what_was_predicted_before(dataset, stream):
    method = tuned("exact")
    states = [Rounds(method, dataset, stream, seed).run(1).state for seed in (0, 1)]
    X = Rounds(method, dataset, stream).data.X_test
    calls = [X[:9], X[4:9], X, X[3:], X[:2], X[:0], X[::-1]]
    for state in (*states, *states):
        for part in calls:
            features = method.stage.adapted_features(state.adapters, part)
            wanted = method.inner.predict(state.inner, features)
            assert np.array_equal(method.predict(state, part), wanted)


def test_nothing_of_the_network_changes_after_task_0(dataset, stream):
    method = tuned()
    rounds = Rounds(method, dataset, stream).run(1)
    adapters, X = rounds.state.adapters, rounds.data.X_test[:4]
    before = method.stage.adapted_features(adapters, X)
    head = rounds.state.head
    rounds.task(1).task(2)
    assert rounds.state.adapters == adapters
    assert {c.adapters for c in rounds.cstates.values()} == {adapters}
    assert np.array_equal(method.stage.adapted_features(adapters, X), before)
    assert rounds.state.head.fingerprint == head.fingerprint
    assert method.embed(rounds.state, X) is None


def test_an_upload_made_with_other_adapters_is_refused(dataset, stream):
    rounds, other = (Rounds(tuned(), dataset, stream, seed).run(1) for seed in (0, 1))
    name = "client-0"
    message = rounds.method.broadcast(rounds.state, 1, 0)
    _, sent = rounds.method.client(other.cstates[name], message, rounds.rows(1, 0), 0)
    with pytest.raises(Refused, match="adapters is"):
        rounds.method.aggregate(rounds.state, 1, 0, {name: sent})


def test_all_bytes_count_and_after_task_0_only_those_of_the_method_travel(dataset, stream):
    method = tuned(n_rounds=3)
    result = run(PreparedJob("fedran", method, dataset, stream))
    assert [t.rounds for t in result.tasks] == [4, 1, 1]
    rounds, up, down = Rounds(method, dataset, stream), [], []
    for r in range(4):
        up.append(len(rounds.one(0, r)["client-1"]))
        down.append(len(rounds.message))
    assert result.tasks[0].bytes_up[1] == sum(up)
    assert result.tasks[0].bytes_down[1] == sum(down)
    adapters = 4 * 2 * (4 * WIDTH + 4 + WIDTH * 4 + WIDTH)  # bytes x blocks x values
    assert all(n > adapters for n in (*up[:3], *down))
    assert up[3] < 4 * (24 * 6 + 24 * 2 + 200)
    sent = rounds.uploads(1, 0)["client-1"]
    assert isinstance(fedran.decode(sent), fedran.Summary)
    assert isinstance(fedran.decode(rounds.message), fedran.Head)
    assert result.label == "FedRAN (fine-tuned in task 0)"
    assert result.params["task0"]["n_rounds"] == 3
    assert result.hashes["weights"] == method.weights_hash
    assert all(s > 0 for s in result.tasks[0].seconds.client)


def test_clients_without_rows_and_rows_without_labels(dataset, stream):
    method = tuned()
    rounds = Rounds(method, dataset, stream)
    empty = ClientData("client-9", "0", rounds.data.X_train[:0], rounds.data.y_train[:0])
    cstate = None
    for r in range(3):
        message = method.broadcast(rounds.state, 0, r)
        cstate, sent = method.client(cstate, message, empty, 0)
        rounds.state = method.aggregate(
            rounds.state, 0, r, {**rounds.uploads(0, r), "client-9": sent}
        )
    assert len(rounds.state.head.classes) == 2
    fresh = Rounds(method, dataset, stream)
    message = method.broadcast(fresh.state, 0, 0)
    data = fresh.rows(0, 0)
    labels = [*data.y[:-2], None, None]
    few = ClientData("client-0", "0", data.X[:-2], data.y[:-2])
    sent = method.client(None, message, few, 0)[1]
    assert method.client(None, message, replace(data, y=labels), 0)[1] == sent


@pytest.mark.parametrize("key", ["finetune", "pilora", "send-images"])
def test_methods_without_frozen_features_have_no_stage(key):
    with pytest.raises(ValueError, match=r"task0 is for methods on frozen .* is none"):
        make_method(key, {"task0": {}})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"rounds": 3},
            "task0 of method 'fedran' has no setting 'rounds' .did you mean 'n_rounds'",
        ),
        ({"lr": 0}, "fedran.task0.lr must be positive"),
        ({"bottleneck": 1.5}, "fedran.task0.bottleneck must be an integer, got 1.5"),
        (3, "task0 of method 'fedran' must be a table, got 3"),
    ],
)
def test_wrong_settings_of_the_stage_are_named(table, message):
    with pytest.raises(ValueError, match=message):
        make_method("fedran", {"task0": table})


def test_settings_and_claims():
    method = make_method("exact", {"task0": {"lr": 1}}, device="cpu")
    assert isinstance(method, FineTuned)
    assert make_method("exact", method.params(), device="cpu") == method
    assert method.params()["kind"] == "cosine"
    assert method.params()["task0"]["lr"] == 1.0
    assert (method.inner.device, method.stage.device, method.device) == ("cpu", "cpu", "cpu")
    assert method.claims == Claims(order_free=True, one_round=False)
    assert make_method("stsa", {"task0": {}}).inner == make_method("stsa")
