"""FedRAN-mixture: the library's own calls, a message without M, near the exact Gram."""

import numpy as np
import pytest

import fedran
from fedran_bench.methods.analytic.fedran_mixture import FedRANMixture
from fedran_bench.methods.analytic.gram_based import Exact
from helpers.toy_federation import distance, make_toy

FINE = {"group_size": 1, "min_group": 1, "directions": 0}


@pytest.mark.parametrize("kind", ["int", "mixed"])
def test_equals_condense_encode_decode_absorb_and_solve(kind):
    toy = make_toy(0, kind)
    found = toy.play(FedRANMixture(out_features=32, group_size=3, min_group=2, directions=2))
    phi = fedran.RandomFeatures(8, 32, kind="cosine", seed=0)
    aggregator = fedran.Aggregator(32, fingerprint=phi.fingerprint)
    for t, task in enumerate(toy.tasks):
        for k, (X, y) in enumerate(task):
            mixture = fedran.condense(X, y, phi, group_size=3, min_group=2, directions=2)
            decoded = fedran.decode(fedran.encode(mixture))
            aggregator.absorb(decoded, client=f"client-{k}", task=str(t))
    assert distance(found.head.weights, aggregator.solve().weights) < 1e-6


def test_the_message_does_not_depend_on_the_width_or_the_seed_of_the_map():
    toy = make_toy(1)
    narrow, wide = FedRANMixture(out_features=16), FedRANMixture(out_features=64)
    assert toy.uploads(narrow, 0, seed=0) == toy.uploads(wide, 0, seed=5)


def test_groups_of_one_row_come_near_the_exact_gram():
    toy = make_toy(2)
    method, exact = FedRANMixture(out_features=48, **FINE), Exact(out_features=48)
    found, wanted = toy.play(method), toy.play(exact)
    assert distance(method.gram(found)[1], exact.gram(wanted)[1]) < 0.05
    agree = method.predict(found, toy.X_test) == exact.predict(wanted, toy.X_test)
    assert np.mean(agree) > 0.9


def test_a_class_with_too_few_rows_is_withheld_by_the_client():
    toy = make_toy(3, clients=1)
    X, _ = toy.tasks[0][0]
    toy.tasks = [[(X, ["many"] * (len(X) - 3) + ["three"] * 3)]]
    assert toy.play(FedRANMixture(out_features=16, min_group=4)).head.classes == ("many",)
    known = toy.play(FedRANMixture(out_features=16, min_group=3)).head.classes
    assert known == ("many", "three")
