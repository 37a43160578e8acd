"""Arguments of the wrong type or in the wrong order end in one sentence about that argument."""

import re

import numpy as np
import pytest

import fedran
from fedran import paper
from fedran.leakage import measure

Z = np.random.default_rng(0).random((30, 4), dtype=np.float32)
y = np.arange(30) % 3
phi = fedran.RandomFeatures(4, 16)
H = phi(Z)
summary = fedran.summarize(H, y, rank=4, fingerprint=phi.fingerprint)
server = fedran.Aggregator(16, fingerprint=phi.fingerprint)
server.absorb(summary, client="a", task="t")
head = server.solve().calibrate(H, y)
clf = fedran.FedRANClassifier(16).fit(Z, y)

WRONG = {
    "condense": (lambda: fedran.condense(Z, y), "prepare them with phi"),
    "rows first": (lambda: fedran.summarize(y, H), "H must be a matrix (rows, columns)"),
    "rows as a size": (lambda: fedran.RandomFeatures(Z, 16), "in_features must be a positive"),
    "a map of nothing": (
        lambda: phi.from_fingerprint(None),
        "fingerprint must be a Fingerprint, got NoneType; pass phi.fingerprint",
    ),
    "fingerprint": (lambda: fedran.Fingerprint("backbone"), "must be a mapping, got str"),
    "weights": (
        lambda: clf.fit(Z, y, sample_weight="balanced"),
        "sample_weight must hold 30 numbers, got str",
    ),
    "a message in bytes": (
        lambda: server.solve_without([fedran.encode(summary)]),
        "a message is a Points or a Summary, got bytes; decode(upload)",
    ),
    "estimator, labels": (lambda: clf.predict(Z, y), "reject must be a number, got ndarray"),
    "tau": (lambda: paper.prototype_labels(Z, y, None), "tau must be a number, got NoneType"),
    "ridge": (lambda: fedran.Ridge.absolute(None), "the ridge must be a number, got NoneType"),
    "a fitted estimator": (
        lambda: fedran.encode(clf),
        "got FedRANClassifier; pass its head_ (joblib saves the whole estimator)",
    ),
    "features for a head": (
        lambda: server.solve().predict(Z),
        "not Z, with phi = fedran.RandomFeatures.from_fingerprint(head.fingerprint)",
    ),
    "budget": (lambda: fedran.encode(summary, max_bytes="2 MB"), "max_bytes must be a positive"),
    "limits": (lambda: fedran.decode(b"", limits=2**20), "limits must be Limits, such as"),
    "plan": (lambda: fedran.plan(1000, 64, 3, rows=0), "rows must be a positive integer"),
    "export": (lambda: fedran.to_onnx(clf), "head must be a Head, got FedRANClassifier"),
    "export, map": (lambda: fedran.to_onnx(head, Z), "phi must be a RandomFeatures, got ndarray"),
    "leak": (lambda: measure(fedran.encode(summary), Z, y, Z, y), "message must be a Points"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named_in_one_sentence(name):
    call, words = WRONG[name]
    if name.startswith("export"):
        pytest.importorskip("onnx")
    with pytest.raises((TypeError, ValueError), match=re.escape(words)) as caught:
        call()
    assert "\n" not in str(caught.value)
