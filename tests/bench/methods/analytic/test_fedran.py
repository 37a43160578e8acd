"""FedRAN and its variants on toy federations."""

from __future__ import annotations

import numpy as np
import pytest

import fedran
from fedran_bench.methods.analytic.fedran import FedRAN, FedRANPoints, FedRANUncentred
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


@pytest.mark.parametrize("method", [FedRAN(24, rank=3), FedRANPoints(), FedRANPaper(24, rank=3)])
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


SIZES = [
    {"group_size": 1, "step": 0.5},
    {"group_size": 3, "min_group": 2, "ridge": 0.1},
    {"group_size": 2, "landmarks": 24},
]


@pytest.mark.parametrize("params", SIZES)
@pytest.mark.parametrize("kind", ["int", "mixed"])
def test_points_equal_condense_encode_decode_absorb_and_solve(params, kind):
    toy = make_toy(0, kind)
    found = toy.play(FedRANPoints(**params))
    phi = fedran.KernelFeatures(toy.width)
    server = fedran.Aggregator(fingerprint=phi.fingerprint)
    sizes = params["group_size"], params.get("min_group", 1)
    for t, task in enumerate(toy.tasks):
        for k, (X, y) in enumerate(task):
            points = fedran.condense(phi(X), y, *sizes, fingerprint=phi.fingerprint)
            upload = fedran.encode(points, step=params.get("step", 1.0))
            server.absorb(fedran.decode(upload), client=f"client-{k}", task=str(t))
    head = server.solve(params.get("ridge"), landmarks=params.get("landmarks"))
    assert fedran.encode(found.head) == fedran.encode(head)


def test_the_server_refuses_smaller_groups_than_agreed():
    toy, strict = make_toy(0), FedRANPoints(group_size=6, min_group=5)
    with pytest.raises(fedran.Refused, match="at least 5 rows"):
        strict.aggregate(strict.init(toy.spec, 0), 0, 0, toy.uploads(FedRANPoints(), 0))
