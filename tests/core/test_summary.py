"""Proposition 1 and the algebra of summaries; what a summary may not claim."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedran
from fedran.core.errors import Refused
from fedran.core.fingerprint import Fingerprint
from fedran.core.summarize import summarize
from fedran.core.sums.accounts import Accounts
from helpers.core.reference import ROUNDING, federations, frobenius, onehot, quick, spectral

centers = st.sampled_from(["class", None])


def total(federation, rank=None, center="class"):
    parts = [summarize(H, y, rank, center=center) for _, _, H, y in federation.uploads]
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result


def changed(s, **changes):
    """The summary with other fields; those of its class sums by their names there."""
    inner = {k: changes.pop(k) for k in ("class_sums", "classes", "counts") if k in changes}
    inner["sums"] = inner.pop("class_sums", s.sums.sums)
    return replace(s, sums=replace(s.sums, **inner), **changes)


def assert_same(a, b):
    """Equal as descriptions of rows: the Gram, not its factor, is what a summary means."""
    assert (a.classes, a.counts) == (b.classes, b.counts)
    scale = 1 + a.accounts.energy
    np.testing.assert_allclose(a.gram(), b.gram(), atol=1e-12 * scale)
    np.testing.assert_allclose(a.class_sums, b.class_sums, atol=1e-12 * scale)
    for name in ("n_rows", "energy", "cut", "eps_G", "eps_G_fro", "eta_loc", "merges"):
        assert getattr(a.accounts, name) == pytest.approx(getattr(b.accounts, name))


@quick
@given(federations(), centers)
def test_proposition_1_statistics_add_over_clients_and_tasks(federation, center):
    s = total(federation, center=center)
    H, y = federation.H, federation.y
    scale = s.accounts.energy
    np.testing.assert_allclose(s.gram(), H.T @ H, atol=ROUNDING * scale)
    np.testing.assert_allclose(s.class_sums, H.T @ onehot(y, s.classes), atol=ROUNDING * scale)
    assert s.counts == tuple(y.count(c) for c in s.classes)
    assert s.accounts.n_rows == len(H)
    assert s.accounts.energy == pytest.approx(np.sum(H**2))
    assert s.rank <= s.out_features


@quick
@given(federations(max_clients=3), st.integers(1, 20), centers)
def test_addition_is_commutative_and_associative(federation, rank, center):
    parts = [summarize(H, y, rank, center=center) for _, _, H, y in federation.uploads]
    a, b, c = (parts * 3)[:3]
    assert_same(a + b, b + a)
    assert_same((a + b) + c, a + (b + c))
    nothing = summarize(np.zeros((0, federation.M)), [], center=center)
    assert_same(a + nothing, a)
    assert_same(nothing + a, a)


@quick
@given(federations(), st.integers(1, 20), st.integers(1, 20), centers)
def test_theorem_1_holds_through_sums_and_truncations(federation, rank, later, center):
    s = total(federation, rank, center).truncate(later)
    error = federation.gram - s.gram()
    room = ROUNDING * s.accounts.energy
    assert s.rank <= later
    assert spectral(error) <= s.accounts.eps_G + room
    assert frobenius(error) <= s.accounts.eps_G_fro + room
    assert np.trace(error) == pytest.approx(s.accounts.cut, abs=room)
    assert np.linalg.eigvalsh(error)[0] >= -room  # residuals are positive semidefinite
    s.validate()


def test_a_truncated_copy_is_no_longer_the_upload_it_came_from():
    s = replace(summarize(np.eye(3), [0, 1, 2]), digest="abc")
    assert s.content_digest() == "abc"
    assert s.truncate(2).digest is None
    assert (s + s).digest is None


def test_summaries_of_different_features_do_not_add():
    rows = np.eye(3)
    a = summarize(rows, [0, 1, 2], fingerprint=Fingerprint.of(seed=0))
    b = summarize(rows, [0, 1, 2], fingerprint=Fingerprint.of(seed=1))
    with pytest.raises(Refused, match="seed is 0 here and 1 there"):
        a + b
    with pytest.raises(Refused, match="the other has none"):
        a + summarize(rows, [0, 1, 2])
    with pytest.raises(Refused, match="out_features: expected 3, got 4"):
        summarize(rows, [0, 1, 2]) + summarize(np.eye(4), [0] * 4)
    with pytest.raises(TypeError):
        a + 1
    assert (a + a).fingerprint == a.fingerprint


def test_centred_and_uncentred_summaries_do_not_add():
    a, b = (summarize(np.eye(3), [0, 1, 1], center=c) for c in ("class", None))
    with pytest.raises(Refused, match="center: expected 'class', got None; summaries add only"):
        a + b
    with pytest.raises(Refused, match="center: expected None, got 'class'"):
        b + a


@pytest.mark.parametrize("kind", ["hellinger", "cosine"])
def test_no_row_is_longer_than_the_feature_map_allows(kind):
    rng = np.random.default_rng(0)
    phi = fedran.RandomFeatures(7, 40, kind=kind)
    s = summarize(phi(rng.random((12, 7))), [0, 1] * 6, 3, fingerprint=phi.fingerprint).validate()
    stretched = summarize(
        100 * phi(rng.random((12, 7))), [0, 1] * 6, 3, fingerprint=phi.fingerprint
    )
    with pytest.raises(Refused, match=r"^accounts\.energy: expected at most .* per row"):
        stretched.validate()
    far = changed(s, class_sums=s.class_sums * [100, 0], counts=(1, 11))
    with pytest.raises(Refused, match="class_sums"):
        far.validate()


def test_numpy_and_torch_summaries_add_to_the_kind_of_the_first():
    rng = np.random.default_rng(0)
    H, y = rng.random((6, 4)), [0, 1, "a", 0, 1, "a"]
    a, b = summarize(H[:3], y[:3]), summarize(torch.as_tensor(H[3:]), y[3:])
    assert isinstance((a + b).factor, np.ndarray)
    assert isinstance((b + a).class_sums, torch.Tensor)
    assert_same(a + b, (b + a).to(None))
    assert isinstance(a.to("cpu").factor, torch.Tensor)
    assert_same(a.to("cpu").to(None), a)
    np.testing.assert_allclose(b.sigma, b.to(None).sigma)


def test_the_content_digest_sees_every_field_but_not_the_layout():
    s = summarize(np.random.default_rng(0).random((5, 4)), [0, 0, 1, 1, 1])
    same = replace(s, factor=np.asfortranarray(s.factor), route="another")
    assert s.content_digest() == same.content_digest() == s.to("cpu").content_digest()
    others = [
        replace(s, factor=s.factor * 2),
        changed(s, class_sums=s.class_sums + 1),
        changed(s, classes=(0, 2)),
        changed(s, counts=(3, 2)),
        replace(s, accounts=s.accounts + Accounts(n_rows=1)),
        replace(s, fingerprint=Fingerprint.of(d=1)),
        replace(s, center=None),
    ]
    assert len({s.content_digest(), *(c.content_digest() for c in others)}) == 8


class TestValidation:
    """A summary whose numbers no rows could have made is refused."""

    good = summarize(np.random.default_rng(0).random((8, 5)), [0, 1] * 4, 2)
    uncentred = summarize(np.random.default_rng(0).random((8, 5)), [0, 1] * 4, 2, center=None)

    def refuse(self, field, **changes):
        for s in (self.good, self.uncentred):
            given = {k: v(s) if callable(v) else v for k, v in changes.items()}
            with pytest.raises(Refused, match=f"^{field}"):
                changed(s, **given).validate()

    @quick
    @given(federations(), st.integers(1, 20), centers)
    def test_every_true_summary_is_valid(self, federation, rank, center):
        s = total(federation, rank, center)
        assert s.validate() is s

    @pytest.mark.parametrize("name", list(Accounts.__dataclass_fields__))
    @pytest.mark.parametrize("value", [-1, np.nan, np.inf])
    def test_accounts_are_finite_and_not_negative(self, name, value):
        self.refuse(f"accounts.{name}", accounts=lambda s: replace(s.accounts, **{name: value}))

    def test_counts_are_positive_and_within_the_rows(self):
        self.refuse("counts", counts=(0, 4))
        self.refuse("counts", counts=(-1, 4))
        self.refuse("counts", counts=(5, 4))

    def test_a_factor_has_no_more_columns_than_its_rows_allow(self):
        H = np.random.default_rng(0).random((3, 5))
        whole = summarize(H, [0, 0, 1], None)
        assert whole.rank == 1
        more = replace(whole, factor=np.repeat(whole.factor / np.sqrt(2), 2, axis=1))
        with pytest.raises(Refused, match="rank: expected at most n_rows - classes = 1, got 2"):
            more.validate()

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_factor_and_sums_are_finite(self, bad):
        self.refuse("factor", factor=lambda s: s.factor * bad)
        self.refuse("class_sums", class_sums=lambda s: s.class_sums * bad)

    def test_factor_and_cut_make_up_the_energy(self):
        self.refuse("accounts.energy", factor=lambda s: s.factor * 1.01)
        self.refuse(
            "accounts.energy", accounts=lambda s: replace(s.accounts, cut=s.accounts.cut * 1.5)
        )

    def test_class_sums_are_part_of_the_energy_of_a_centred_summary(self):
        less = changed(self.good, class_sums=self.good.class_sums * 0.99)
        with pytest.raises(Refused, match=r"energy: expected \|\|F\|\|\^2 \+ cut \+ sum_c"):
            less.validate()
        changed(self.uncentred, class_sums=self.uncentred.class_sums * 0.99).validate()

    def test_class_sums_obey_cauchy_schwarz(self):
        self.refuse("class_sums", class_sums=lambda s: s.class_sums * 3)

    @pytest.mark.parametrize("parts", [0, 9])
    def test_a_summary_has_at_least_one_part_and_no_more_parts_than_rows(self, parts):
        self.refuse("accounts.parts", accounts=lambda s: replace(s.accounts, parts=parts))

    def test_energy_needs_rows(self):
        self.refuse(
            "accounts",
            class_sums=np.zeros((5, 0)),
            classes=(),
            counts=(),
            accounts=lambda s: replace(s.accounts, n_rows=0),
        )


def test_sum_adds_summaries():
    parts = [fedran.summarize(np.eye(2), [0, 1]) for _ in range(3)]
    assert sum(parts).accounts.n_rows == 6
    with pytest.raises(TypeError):
        3 + parts[0]


@pytest.mark.parametrize(
    ("change", "named"), [({"eta_loc": 1.5}, "eta_loc"), ({"cut": 1.0, "energy": 3.0}, "eps_G")]
)
def test_impossible_losses_are_refused(change, named):
    s = fedran.summarize(np.eye(2), [0, 1])
    with pytest.raises(fedran.Refused, match=named):
        replace(s, accounts=replace(s.accounts, **change)).validate()
