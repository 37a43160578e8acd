"""Heads as torch modules."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest

import fedran
from fedran.backbones.export import to_torch

LINEAR = ["relu", "cosine with bias", "hellinger", "cosine, not projected"]
KERNEL = [
    f"{kind}{bias}, kernel" for kind in ("cosine", "hellinger") for bias in ("", " with bias")
]


@pytest.fixture(params=LINEAR + KERNEL)
def fitted(request):
    kind, bias = re.split("[ ,]", request.param)[0], "bias" in request.param
    rng = np.random.default_rng(0)
    Z, y = rng.random((30, 5)).astype(np.float32), rng.integers(0, 3, 30)
    if "kernel" in request.param:
        phi = fedran.KernelFeatures(5, kind, bias)
        message = fedran.condense(phi(Z), y, 2, fingerprint=phi.fingerprint)
    else:
        projected = "not" not in request.param
        M = 40 if projected else 5
        phi = fedran.RandomFeatures(5, M, kind, bias=bias, projected=projected)
        message = fedran.summarize(phi(Z), y, 4, fingerprint=phi.fingerprint)
    agg = fedran.Aggregator(fingerprint=phi.fingerprint)
    agg.absorb(message, client="a", task="t")
    return Z, phi, agg.solve(landmarks=9)


def test_the_torch_module_gives_the_scores_of_the_head(fitted):
    torch = pytest.importorskip("torch")
    Z, phi, head = fitted
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


def test_export_with_another_feature_map_is_refused(fitted):
    pytest.importorskip("torch")
    _, phi, head = fitted
    other, wrong = fedran.RandomFeatures(5, 8), fedran.KernelFeatures(5)
    if head.landmarks is not None:
        other, wrong = fedran.KernelFeatures(8), other
    with pytest.raises(fedran.Refused, match=r"here and .* there"):
        to_torch(head, other)
    with pytest.raises(ValueError, match="phi makes 8 features"):
        to_torch(replace(head, fingerprint=None), other)
    with pytest.raises(TypeError, match=f"phi must be a {type(phi).__name__}"):
        to_torch(head, wrong)


def test_export_without_torch_says_what_to_install(fitted, monkeypatch):
    _, phi, head = fitted
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"install fedran's extra 'torch'"):
        to_torch(head, phi)
