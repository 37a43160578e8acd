"""Heads as torch modules."""

import re
import sys

import numpy as np
import pytest

import fedran
from fedran.backbones.export import to_torch


@pytest.fixture(params=["relu", "cosine with bias", "hellinger", "cosine, not projected"])
def fitted(request):
    kind, bias = re.split("[ ,]", request.param)[0], "bias" in request.param
    rng = np.random.default_rng(0)
    Z, y = rng.random((30, 5)).astype(np.float32), rng.integers(0, 3, 30)
    projected = "not" not in request.param
    M = 40 if projected else 5
    phi = fedran.RandomFeatures(5, M, kind, bias=bias, projected=projected)
    agg = fedran.Aggregator(M)
    summary = fedran.summarize(phi(Z), y, 4, fingerprint=phi.fingerprint)
    agg.absorb(summary, client="a", task="t")
    return Z, phi, agg.solve()


def test_the_torch_module_gives_the_scores_of_the_head(fitted):
    torch = pytest.importorskip("torch")
    Z, phi, head = fitted
    module = to_torch(head, phi)
    assert np.allclose(module(torch.asarray(Z)).numpy(), head.scores(phi(Z)), atol=1e-5)
    Z[3] = 0
    assert np.allclose(module(torch.asarray(Z)).numpy(), head.scores(phi(Z)), atol=1e-5)
    exported = torch.export.export(module, (torch.asarray(Z),)).module()
    assert torch.equal(exported(torch.asarray(Z)), module(torch.asarray(Z)))
    assert not any(p.requires_grad for p in module.parameters())
    assert module.classes == head.classes
    assert torch.equal(head.to_torch()(torch.asarray(Z)), module(torch.asarray(Z)))


def test_export_with_another_feature_map_is_refused(fitted):
    pytest.importorskip("torch")
    _, _, head = fitted
    with pytest.raises(fedran.Refused, match="seed is 1 here and 0 there"):
        to_torch(head, fedran.RandomFeatures(5, 40, seed=1))
    bare = fedran.Head(head.weights, head.classes, head.diagnosis)
    with pytest.raises(ValueError, match="phi makes 8 features"):
        to_torch(bare, fedran.RandomFeatures(5, 8))


def test_export_without_torch_says_what_to_install(fitted, monkeypatch):
    _, phi, head = fitted
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"install fedran's extra 'torch'"):
        to_torch(head, phi)
