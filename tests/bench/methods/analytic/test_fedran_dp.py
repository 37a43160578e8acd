"""FedRAN-dp: the library's own noisy sums, added over clients."""

import numpy as np
import pytest

from fedran.core.errors import Refused
from fedran.core.features import RandomFeatures
from fedran.core.private.dp import Budget, Mechanism, levels_for
from fedran.wire.container import unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.fedran_dp import FedRANDP
from helpers.bench.hostile import altered, frozen
from helpers.bench.toy_federation import make_toy


def answers(toy, method, state, t):
    return toy.uploads(method, t, message=method.broadcast(state, t, 0))


def integers(uploads):
    vectors = [unpack(b, FILE_LIMITS).tensors["vector"].view("<u4") for b in uploads.values()]
    return np.sum(vectors, axis=0, dtype=np.uint32).view(np.int32).astype(np.int64)


def noise_of(method, toy, t=0):
    """The noise that all clients added together, as standard deviations of one client's share."""
    state = method.init(toy.spec, 0)
    found = integers(answers(toy, method, state, t))
    classes = toy.spec.task_classes[t]
    honest, sites = method.honest or len(toy.tasks[t]), len(toy.tasks[t])
    budget = Budget(method.epsilon, method.delta)
    mechanism = Mechanism(
        toy.width,
        budget,
        honest,
        levels=levels_for(method.most_rows, budget, sites / honest),
    )
    phi = RandomFeatures(toy.width, 1)
    plain = sum(mechanism.sums(phi.prepare(X), y, classes) for X, y in toy.tasks[t])
    d = toy.width
    off = [i < j for i in range(d) for j in range(i, d)]
    return (found - plain)[: len(off)][off] / np.sqrt(mechanism.site_variances[0])


def test_noise_of_all_clients_adds_up_to_what_the_honest_ones_must_give():
    toy = make_toy(0, d=40)
    everyone, two = FedRANDP(epsilon=1.0), FedRANDP(epsilon=1.0, honest=2)
    for method, clients in ((everyone, 3), (two, 3)):
        spread = noise_of(method, toy).var()
        assert spread == pytest.approx(clients, rel=0.25)


def test_with_hardly_any_noise_it_separates_the_classes():
    toy = make_toy(1, "mixed", rows=60)
    method = FedRANDP(epsilon=1e5)
    state = toy.play(method)
    X, y = toy.pooled()
    assert np.mean(method.predict(state, X.astype(np.float32)) == np.array(y, dtype=object)) > 0.9


def test_fewer_clients_than_the_noise_counts_on_are_refused():
    toy, method = make_toy(0), FedRANDP()
    state = method.init(toy.spec, 0)
    uploads = answers(toy, method, state, 0)
    del uploads["client-1"]
    with pytest.raises(Refused, match="at least 3, for which the noise is calibrated"):
        method.aggregate(state, 0, 0, uploads)


@pytest.mark.parametrize(
    "attack",
    [
        lambda blob: blob[:-1],
        lambda blob: altered(blob, kind="head"),
        lambda blob: altered(blob, vector=lambda v: v[:-4]),
        lambda blob: altered(blob, vector=None),
        lambda blob: altered(blob, other=np.zeros(2)),
    ],
)
def test_hostile_uploads_are_refused_and_change_nothing(attack):
    toy, method = make_toy(0), FedRANDP()
    state = toy.play(method, upto=1)
    before = frozen(state)
    uploads = answers(toy, method, state, 1)
    uploads["client-0"] = attack(uploads["client-0"])
    with pytest.raises(Refused):
        method.aggregate(state, 1, 0, uploads)
    assert frozen(state) == before


def test_a_client_needs_the_offer_and_no_more_rows_than_agreed():
    toy = make_toy(0)
    with pytest.raises(ValueError, match="needs the server's offer"):
        FedRANDP().client(None, b"", toy.data(0, 0), 0)
    method = FedRANDP(most_rows=2)
    message = method.broadcast(method.init(toy.spec, 0), 0, 0)
    with pytest.raises(ValueError, match="most_rows allows 2"):
        method.client(None, message, toy.data(0, 0), 0)
