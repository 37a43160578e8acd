"""Wrong arguments are refused at once, in words that say what to pass."""

import sys

import numpy as np
import pytest

import fedran


@pytest.mark.parametrize("wrong", [fedran.RandomFeatures(2, 3), "abc", {"M": 3}])
def test_a_fingerprint_must_be_one(wrong):
    with pytest.raises(TypeError, match=r"pass phi\.fingerprint"):
        fedran.summarize(np.eye(3), [0, 1, 2], fingerprint=wrong)
    with pytest.raises(TypeError, match=r"pass phi\.fingerprint"):
        fedran.Aggregator(3, fingerprint=wrong)


def test_a_device_without_torch_is_noticed_by_the_constructor(monkeypatch):
    monkeypatch.setitem(sys.modules, "array_api_compat.torch", None)
    with pytest.raises(ImportError, match=r"fedran\[torch\]"):
        fedran.Aggregator(3, device="cuda")


def test_a_source_is_a_name_or_a_mapping():
    with pytest.raises(TypeError, match="source must be a str or a mapping, got int"):
        fedran.RandomFeatures(2, 3, source=3)


@pytest.mark.parametrize("ridge", ["x", True, [1.0]])
def test_a_ridge_is_a_number_or_a_rule(ridge):
    agg = fedran.Aggregator(2)
    agg.absorb(fedran.summarize(np.eye(2), [0, 1]), client="a", task="t")
    with pytest.raises(TypeError, match="a number, a Ridge or None"):
        agg.solve(ridge)


def test_sums_of_summaries_start_from_zero():
    parts = [fedran.summarize(np.eye(2), [0, 1]) for _ in range(3)]
    assert sum(parts).accounts.n_rows == 6
    with pytest.raises(TypeError):
        3 + parts[0]


@pytest.mark.parametrize(
    ("change", "named"), [({"eta_loc": 1.5}, "eta_loc"), ({"cut": 1.0, "energy": 3.0}, "eps_G")]
)
def test_impossible_losses_are_refused(change, named):
    from dataclasses import replace

    s = fedran.summarize(np.eye(2), [0, 1])
    with pytest.raises(fedran.Refused, match=named):
        replace(s, accounts=replace(s.accounts, **change)).validate()
