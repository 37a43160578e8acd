"""FedRAN in both forms of its summaries: both are exact at full rank."""

import numpy as np
import pytest

import fedran
from fedran_bench.methods.analytic.fedran import FedRAN, FedRANUncentred
from fedran_bench.methods.analytic.fedran_mixture import FedRANMixture
from fedran_bench.methods.analytic.fedran_paper import FedRANPaper
from fedran_bench.methods.analytic.gram_based import STSA, Exact
from fedran_bench.methods.analytic.loranpac import LoRanPAC
from fedran_bench.methods.yardsticks import SendFeatures
from helpers.toy_federation import distance, make_toy

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
    assert distance(full.gram(found)[1], exact.gram(wanted)[1]) < 1e-5
    assert distance(found.head.weights, wanted.head.weights) < 1e-3


def test_centred_summaries_lose_less_than_uncentred_ones_of_the_same_rank():
    errors = []
    for method in (FedRAN, FedRANUncentred):
        toy, exact = make_toy(1), Exact(out_features=24)
        low = method(out_features=24, rank=2, precision="float32")
        gram = exact.gram(toy.play(exact))[1]
        errors.append(np.linalg.norm(low.gram(toy.play(low))[1] - gram))
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
