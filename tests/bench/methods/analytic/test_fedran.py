"""FedRAN and its variants on toy federations."""

from __future__ import annotations

import numpy as np
import pytest

import fedran
from fedran_bench.methods.analytic.fedran import FedRAN, FedRANMixture, FedRANUncentred
from fedran_bench.methods.analytic.fedran_paper import FedRANPaper
from fedran_bench.methods.analytic.gram_based import STSA, Exact
from fedran_bench.methods.analytic.ranpac import LoRanPAC
from fedran_bench.methods.yardsticks import SendFeatures
from helpers.bench.toy_federation import distance, make_toy

FORMS = [(FedRAN, "class"), (FedRANUncentred, None)]


@pytest.mark.parametrize(("method", "center"), [*FORMS, (FedRANPaper, None)])
def test_uploads_say_whether_they_are_centred(method, center):
    toy = make_toy(0)
    for blob in toy.uploads(method(out_features=24, rank=3), 0).values():
        assert fedran.decode(blob).center == center


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("method", "center"), FORMS)
def test_full_rank_without_rounding_is_the_exact_gram(seed, method, center):
    toy = make_toy(seed, "mixed")
    full, exact = method(out_features=24, rank=24, precision="float32"), Exact(out_features=24)
    found, wanted = toy.play(full), toy.play(exact)
    assert distance(found.aggregator.gram(), wanted.total.gram()) < 1e-5
    assert distance(found.head.weights, wanted.head.weights) < 1e-3


def test_centred_summaries_lose_less_than_uncentred_ones_of_the_same_rank():
    errors = []
    for method in (FedRAN, FedRANUncentred):
        toy, exact = make_toy(1), Exact(out_features=24)
        low = method(out_features=24, rank=2, precision="float32")
        gram = toy.play(exact).total.gram()
        errors.append(np.linalg.norm(toy.play(low).aggregator.gram() - gram))
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.parametrize("method", [FedRAN(24, rank=3), FedRANMixture(24), FedRANPaper(24, rank=3)])
def test_uploads_for_features_of_another_source_are_refused(method):
    toy = make_toy(0)
    one, other = (method.bound_to({"weights": name}) for name in ("a", "b"))
    assert toy.play(one).head.fingerprint.fields["weights"] == "a"
    assert one == method
    assert method.source is None
    for sender in (other, method):
        with pytest.raises(fedran.Refused, match="weights is"):
            one.aggregate(one.init(toy.spec, 0), 0, 0, toy.uploads(sender, 0))


@pytest.mark.parametrize("method", [Exact(24), STSA(24), SendFeatures(24), LoRanPAC(24)])
def test_the_source_is_part_of_the_fingerprint_of_every_random_map(method):
    assert make_toy(0).play(method.bound_to({"weights": "a"})).phi.source == {"weights": "a"}


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
    assert distance(found.aggregator.gram(), wanted.total.gram()) < 0.05
    agree = method.predict(found, toy.X_test) == exact.predict(wanted, toy.X_test)
    assert np.mean(agree) > 0.9


def test_a_class_with_too_few_rows_is_withheld_by_the_client():
    toy = make_toy(3, clients=1)
    X, _ = toy.tasks[0][0]
    toy.tasks = [[(X, ["many"] * (len(X) - 3) + ["three"] * 3)]]
    assert toy.play(FedRANMixture(out_features=16, min_group=4)).head.classes == ("many",)
    known = toy.play(FedRANMixture(out_features=16, min_group=3)).head.classes
    assert known == ("many", "three")
