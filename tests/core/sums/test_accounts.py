from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from fedran.core.sums.accounts import Accounts, Loss
from helpers.core.reference import quick

MAXIMA = {"eta_loc", "eta_merge", "merges"}
counts = st.integers(0, 1000)
accounts = st.builds(
    Accounts, **{f.name: counts.map(float if f.type == "float" else int) for f in fields(Accounts)}
)


@quick
@given(accounts, accounts, accounts)
def test_accounts_form_a_commutative_monoid(a, b, c):
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + Accounts() == a


@quick
@given(accounts, accounts)
def test_worst_cases_are_maxima_and_everything_else_adds(a, b):
    for f in fields(Accounts):
        x, y = getattr(a, f.name), getattr(b, f.name)
        assert getattr(a + b, f.name) == (max(x, y) if f.name in MAXIMA else x + y)


def test_a_local_truncation_sets_the_clients_share():
    cut = Accounts(n_rows=2, energy=10.0).after_local_cut(Loss(1.0, 2.0, 3.0))
    assert (cut.cut, cut.eps_G, cut.eps_G_fro, cut.eta_loc) == (3.0, 1.0, 2.0, 0.3)
    assert (cut.merges, cut.eta_merge) == (0, 0.0)


def test_a_merge_cut_counts_a_merge_and_its_share_of_what_was_left():
    before = Accounts(n_rows=2, energy=10.0, cut=2.0, eta_loc=0.2)
    after = before.after_merge_cut(Loss(1.0, 2.0, 4.0))
    assert (after.cut, after.eta_merge, after.merges) == (6.0, 0.5, 1)
    assert after.eta_loc == 0.2
    assert before.after_merge_cut(Loss()) is before


def test_the_cut_never_exceeds_the_energy():
    assert Accounts(energy=1.0, cut=0.9).after_merge_cut(Loss(1, 1, 5.0)).cut_fraction == 1.0


def test_quantisation_adds_to_every_bound_but_not_to_the_cut():
    after = Accounts(energy=10.0, eps_G=1.0).after_quantisation(0.5, 0.7, 0.2)
    assert (after.eps_G, after.eps_G_fro, after.eps_quant) == (1.5, 0.7, 0.5)
    assert (after.eps_B, after.cut) == (0.2, 0.0)
