"""Weights of the published code on small inputs, made by ``benchmarks/official_outputs.py``."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedran_bench.methods.analytic.afl import AFL, AFLRidgeKept
from fedran_bench.methods.analytic.class_means import FedCOF, FedNCM
from fedran_bench.methods.analytic.gram_based import STSA, Fed3R
from fedran_bench.methods.analytic.ranpac import LoRanPAC, RanPAC
from fedran_bench.methods.analytic.stsa_e import STSAE
from helpers.bench.toy_federation import Toy, distance, unit

FIXTURE = json.loads(
    (Path(__file__).parents[3] / "helpers/fixtures/official_outputs.json").read_text()
)
PARTS = [
    (np.array(X, dtype=np.float32), y)
    for X, y in zip(FIXTURE["rows"], FIXTURE["labels"], strict=True)
]


TOY = Toy([PARTS], PARTS[0][0])


def weights(method):
    return TOY.play(method).head.weights


@pytest.mark.parametrize("case", FIXTURE["afl"], ids=lambda c: f"gamma={c['gamma']}")
def test_afl_before_and_after_the_ridges_are_removed(case):
    removed, kept = (np.array(case[k]) for k in ("ridge_removed", "ridge_kept"))
    assert distance(weights(AFL(case["gamma"])), removed) < 1e-5
    assert distance(weights(AFLRidgeKept(case["gamma"])), kept) < 1e-5
    assert distance(kept, removed) > 1e-3


@pytest.mark.parametrize("case", FIXTURE["fed3r"], ids=lambda c: f"lambda={c['lambda']}")
def test_fed3r_with_its_bias_in_the_last_row(case):
    assert distance(weights(Fed3R(case["lambda"])), np.array(case["weights"])) < 1e-4


@pytest.mark.parametrize("case", FIXTURE["fedcof"], ids=lambda c: f"gamma={c['gamma']}")
def test_fedcof(case):
    assert distance(weights(FedCOF(case["gamma"])), np.array(case["weights"])) < 1e-4


def test_fedncm_predicts_what_the_published_weights_predict():
    wanted = np.array(FIXTURE["fedcof"][0]["fedncm"])
    X = np.random.default_rng(0).standard_normal((200, len(wanted))).astype(np.float32)
    state = TOY.play(FedNCM())
    assert FedNCM().predict(state, X).tolist() == np.argmax(X @ wanted, axis=1).tolist()


@pytest.mark.parametrize(
    "case", FIXTURE["stsa"], ids=lambda c: f"lambda={c['lambda']:g},dummies={c['dummies']}"
)
def test_stsa_and_stsa_e_with_cosine_scores(case):
    lam, dummies = case["lambda"], case["dummies"]
    method = STSA(16, lam) if dummies is None else STSAE(16, lam, dummies=dummies)
    assert distance(weights(method), unit(np.array(case["weights"]))) < 1e-4


@pytest.mark.parametrize("case", FIXTURE["ranpac"])
def test_ranpac_and_the_ridge_that_it_chooses(case):
    head = TOY.play(RanPAC(16)).head
    assert head.diagnosis.lam == case["lambda"]
    assert distance(head.weights, np.array(case["weights"])) < 1e-3


@pytest.mark.parametrize("case", FIXTURE["loranpac"])
def test_the_scores_of_loranpac_after_three_tasks_of_one_client(case):
    stream = Toy([[part] for part in PARTS], PARTS[0][0])
    state = stream.play(LoRanPAC(16))
    X = np.concatenate([X for X, _ in PARTS])
    assert distance(state.head.scores(state.phi(X)), np.array(case["scores"])) < 1e-3
