"""Forged states and uploads cannot give a server a state that it cannot save, load or solve."""

import contextlib

import numpy as np
import pytest

import fedran
from helpers.wire.messages import AGGREGATORS, CENTERS, half_done, set_field, summary, tampered


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("form", ["stack", "float64"])
def test_uploads_whose_sum_overflows_cannot_spoil_the_state(form, center, tmp_path):
    """Each fits float32, their Gram does not: refused, or the state stays finite and loadable."""
    agg = fedran.Aggregator(8, **AGGREGATORS[form])
    H = np.zeros((3, 8))
    H[:, 0] = 1.5e18
    for i in range(4):
        blob = fedran.encode(fedran.summarize(H, [i] * 3, center=center), "float32")
        try:
            agg.absorb(fedran.decode(blob), client=f"c{i}", task="t")
        except fedran.Refused:
            assert i > 0
    fedran.save(agg, tmp_path / "a")
    loaded = fedran.load(tmp_path / "a")
    head = fedran.decode(fedran.encode(loaded.solve()), fedran.Head)
    assert np.isfinite(head.weights).all()


@pytest.mark.parametrize("form", ["stack", "gram"])
@pytest.mark.parametrize(
    "claims",
    [
        {"n_rows": 2**63 - 1},
        {"eps_G": 1.7e308},
        {"eps_B": 1.7e308},
        {"energy": 1.7e308, "cut": 1.7e308},
    ],
    ids=lambda c: next(iter(c)),
)
def test_accounts_whose_sum_overflows_cannot_spoil_the_state(form, claims, tmp_path):
    """Refused by decode or absorb, or the state can still be saved, loaded and solved."""
    blob = tampered(fedran.encode(summary()), lambda m: m.fields["accounts"].update(claims))
    agg = fedran.Aggregator(16, **AGGREGATORS[form])
    agg.absorb(summary(), client="honest", task="t")
    for task in ("t", "u"):
        with contextlib.suppress(fedran.Refused):
            agg.absorb(fedran.decode(blob), client="a", task=task)
    fedran.save(agg, tmp_path / "a")
    head = fedran.load(tmp_path / "a").solve()
    assert fedran.decode(fedran.encode(head), fedran.Head).classes == head.classes


STATE_DAMAGE = {
    "ledger row": ("ledger", [["a", "b"]], "ledger"),
    "ledger id": ("ledger", [["a/b", "c", "d"]], "ledger"),
    "ledger digest": ("ledger", [["a", "c", 3]], "ledger"),
    "form": ("state.form", "cube", "state.form"),
    "width": ("state.width", 6, "stack"),
    "dtype": ("dtype", "float16", "dtype"),
    "other dtype": ("dtype", "float64", "stack"),
    "kind": ("kind", "summary", "kind: expected aggregator, got summary"),
    "counts": ("state.counts", [1], "state.counts"),
    "count of 0": ("state.counts", [0, 1, 1, 1, 1], "state.counts"),
    "classes": ("state.classes", ["ant", 0, 1, 2, "bee"], "state.classes"),
    "fewer classes": ("state.classes", ["ant"], "state.counts"),
    "accounts": ("state.accounts.energy", -1.0, "state.accounts.energy"),
    "energy of other rows": ("state.accounts.energy", 1e9, "state.accounts.energy"),
    "cut of other rows": ("state.accounts.cut", 1e9, "state.accounts.energy"),
    "too few rows": ("state.accounts.n_rows", 2, "state.accounts"),
    "too many parts": ("state.accounts.parts", 10**6, "state.accounts"),
    "no state": ("state", None, "state"),
    "older version": ("version", "1.0", "older fedran"),
}


@pytest.mark.parametrize("case", STATE_DAMAGE)
def test_a_forged_exact_state_is_refused(case, tmp_path):
    path, value, named = STATE_DAMAGE[case]
    blob = tampered(fedran.encode(half_done("stack")), set_field(path, value))
    (tmp_path / "x").write_bytes(blob)
    with pytest.raises(fedran.Refused, match=named):
        fedran.load(tmp_path / "x", fedran.Aggregator)
