"""Heads as ONNX files and torch modules give our labels, scores and probabilities."""

import json
import sys
from dataclasses import replace

import numpy as np
import pandas
import pytest

import fedran
from fedran.backbones import export
from fedran.backbones.export import to_torch
from fedran.core.fingerprint import columns_hash

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

MAPS = [("relu", False), ("relu", True), ("cosine", False), ("cosine", True), ("hellinger", True)]
FORMS = [(kind, bias, "linear") for kind, bias in MAPS]
FORMS += [(kind, bias, "kernel") for kind in ("cosine", "hellinger") for bias in (False, True)]


def solved(
    kind="cosine", bias=False, form="linear", names=("a", "b", "c"), projected=True, landmarks=25
):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, len(names), 60)
    Z = (rng.random((60, 5)) + codes[:, None] * [1, 0, 0.5, 0, 0]).astype(np.float32)
    y = [names[c] for c in codes]
    if form == "kernel":
        phi = fedran.KernelFeatures(5, kind, bias)
        message = fedran.condense(phi(Z), y, fingerprint=phi.fingerprint)
    else:
        phi = fedran.RandomFeatures(5, 300 if projected else 5, kind, 3, bias, None, projected)
        message = fedran.summarize(phi(Z), y, fingerprint=phi.fingerprint)
    agg = fedran.Aggregator(fingerprint=phi.fingerprint)
    agg.absorb(message, client="a", task="t")
    return Z, y, phi, replace(agg.solve(landmarks=landmarks), calibration=None)


def run(model: bytes, Z, *outputs):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(list(outputs), {"features": Z})


@pytest.mark.parametrize(("kind", "bias", "form"), FORMS)
@pytest.mark.parametrize("names", [("a", "b", "c"), (-3, 0, 10**12)])
def test_onnxruntime_gives_the_labels_and_scores_of_the_head(kind, bias, form, names):
    Z, _, phi, head = solved(kind, bias, form, names)
    Z[4] = 0
    label, scores = run(fedran.to_onnx(head), Z, "label", "scores")
    np.testing.assert_allclose(scores, head.scores(phi(Z)), atol=1e-4)
    assert label.tolist() == head.predict(phi(Z)).tolist()
    assert run(head.to_onnx(phi=phi), Z[:1], "label")[0].tolist() == label[:1].tolist()


def test_a_head_over_features_that_are_not_projected():
    Z, _, phi, head = solved("hellinger", projected=False)
    label, scores = run(fedran.to_onnx(head), Z, "label", "scores")
    np.testing.assert_allclose(scores, head.scores(phi(Z)), atol=1e-5)
    assert label.tolist() == head.predict(phi(Z)).tolist()


@pytest.mark.parametrize("form", ["linear", "kernel"])
def test_a_calibrated_head_has_probabilities_and_the_file_says_what_it_is(form):
    onnx = pytest.importorskip("onnx")
    Z, y, phi, head = solved(form=form, names=(2, 7, "x"))
    with pytest.raises(Exception, match="probabilities"):
        run(fedran.to_onnx(head), Z, "probabilities")
    model = fedran.to_onnx(head.calibrate(phi(Z), y))
    label, P = run(model, Z, "label", "probabilities")
    np.testing.assert_allclose(P, head.calibrate(phi(Z), y).predict_proba(phi(Z)), atol=1e-4)
    assert label.tolist() == [str(c) for c in head.predict(phi(Z))]
    meta = {p.key: p.value for p in onnx.load_from_string(model).metadata_props}
    assert json.loads(meta["classes"]) == [2, 7, "x"]
    assert json.loads(meta["fingerprint"]) == dict(phi.fingerprint.fields)


@pytest.mark.parametrize(("kind", "bias", "form"), FORMS)
@pytest.mark.parametrize(
    ("names", "none"), [((5, -3, 12), -(2**63)), (("a", "é"), ""), ((1, "a"), "")]
)
def test_a_row_that_the_map_refuses_gets_no_label(kind, bias, form, names, none):
    Z, _, _, head = solved(kind, bias, form, names)
    Z[:3, 1] = np.nan, np.inf, -np.inf
    Z[3, 1] = -1.0 if kind == "hellinger" else np.nan
    label, scores = run(fedran.to_onnx(head), Z, "label", "scores")
    assert np.isnan(scores).any(axis=1).nonzero()[0].tolist() == [0, 1, 2, 3]
    assert (label == none).nonzero()[0].tolist() == [0, 1, 2, 3]


def test_heads_that_cannot_be_exported_say_why(monkeypatch):
    _, _, _phi, head = solved()
    bare = fedran.Head(head.weights, head.classes, head.diagnosis)
    with pytest.raises(ValueError, match="does not identify its feature map; pass phi"):
        fedran.to_onnx(bare)
    with pytest.raises(fedran.Refused, match="seed is 1 here and 3 there"):
        fedran.to_onnx(head, fedran.RandomFeatures(5, 300, seed=1))
    monkeypatch.setattr(export, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match="less than 2 GiB"):
        fedran.to_onnx(head)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"install fedran's extra 'onnx'"):
        fedran.to_onnx(head)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"install fedran's extra 'torch'"):
        to_torch(head)


def test_the_scaler_of_a_head_becomes_part_of_the_models():
    X, y, _, head = solved()
    X = X * np.float32(50) + np.float32(7)
    clf = fedran.FedRANClassifier(64, scaler=fedran.FederatedScaler()).fit(X, y)
    label, scores = run(fedran.to_onnx(clf.head_, scaler=clf.scaler_), X, "label", "scores")
    assert label.tolist() == clf.predict(X).tolist()
    np.testing.assert_allclose(scores, clf.decision_function(X), atol=1e-4)
    with pytest.raises(fedran.Refused, match="scaled with, got none"):
        fedran.to_onnx(clf.head_)
    with pytest.raises(fedran.Refused, match="expected no scaler"):
        fedran.to_onnx(head, scaler=clf.scaler_)


def test_a_scaler_with_its_columns_in_another_order_than_the_head_is_refused():
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(30, 3)), columns=["a", "b", "c"])
    scaler = fedran.FederatedScaler().fit(frame)
    y = (frame["a"] > 0).astype(int)
    head = fedran.FedRANClassifier(64, scaler=scaler).fit(frame, y).head_
    fields = {**head.fingerprint.fields, "columns": columns_hash(["c", "a", "b"])}
    other = replace(head, fingerprint=fedran.Fingerprint(fields))
    fedran.to_onnx(head, scaler=scaler)
    with pytest.raises(fedran.Refused, match="columns of the head in their order, got others"):
        fedran.to_onnx(other, scaler=scaler)


@pytest.mark.parametrize(
    ("kind", "bias", "form", "projected"),
    [*((*form, True) for form in FORMS), ("cosine", False, "linear", False)],
)
def test_the_torch_module_gives_the_scores_of_the_head(kind, bias, form, projected):
    torch = pytest.importorskip("torch")
    Z, _, phi, head = solved(kind, bias, form, projected=projected, landmarks=9)
    module = to_torch(head, phi)
    for zero in (False, True):
        Z[3] *= not zero
        scores = module(torch.asarray(Z)).numpy()
        np.testing.assert_allclose(scores, head.scores(phi(Z)), atol=1e-5)
    exported = torch.export.export(module, (torch.asarray(Z),)).module()
    assert torch.equal(exported(torch.asarray(Z)), module(torch.asarray(Z)))
    assert not any(p.requires_grad for p in module.parameters())
    assert module.classes == head.classes
    assert torch.equal(head.to_torch()(torch.asarray(Z)), module(torch.asarray(Z)))


@pytest.mark.parametrize("form", ["linear", "kernel"])
def test_a_module_of_another_feature_map_is_refused(form):
    pytest.importorskip("torch")
    _, _, phi, head = solved(form=form)
    other, wrong = fedran.RandomFeatures(5, 8), fedran.KernelFeatures(5)
    if form == "kernel":
        other, wrong = fedran.KernelFeatures(8), other
    with pytest.raises(fedran.Refused, match=r"here and .* there"):
        to_torch(head, other)
    with pytest.raises(ValueError, match="phi makes 8 features"):
        to_torch(replace(head, fingerprint=None), other)
    with pytest.raises(TypeError, match=f"phi must be a {type(phi).__name__}"):
        to_torch(head, wrong)
