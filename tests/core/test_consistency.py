"""The checks of one site's accounts: honest summaries always pass, impossible ones never."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import fedran
from fedran.core.consistency import check_one_site
from fedran.core.features import row_energy_range
from fedran.wire.container import unpack
from fedran.wire.summary_codec import PRECISIONS, rounding_of
from fedran.wire.validation import DEFAULT_LIMITS

many = settings(max_examples=50, deadline=None)


@st.composite
def rows(draw):
    """Features and labels of one site: clustered or spread, of any decay, few or many."""
    n, d = draw(st.integers(1, 60)), draw(st.integers(2, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spectrum = np.exp(-draw(st.floats(0, 3)) * np.arange(d))
    centres = draw(st.floats(0, 3)) * rng.standard_normal((5, d))
    codes = rng.integers(draw(st.integers(1, 5)), size=n)
    Z = (centres[codes] + rng.standard_normal((n, d))) * spectrum
    return np.abs(Z) if draw(st.booleans()) else Z, [int(c) for c in codes]


def of_wire(summary, **options):
    """The summary as a server sees it, with what its encoding can have caused."""
    blob = fedran.encode(summary, **options)
    decoded = fedran.decode(blob, fedran.Summary)
    return decoded, rounding_of(unpack(blob, DEFAULT_LIMITS), decoded)


@many
@given(
    rows(),
    st.sampled_from(["cosine", "hellinger", "relu"]),
    st.integers(8, 96),
    st.one_of(st.none(), st.integers(1, 40)),
    st.sampled_from(PRECISIONS),
    st.floats(2, 10),
    st.booleans(),
)
def test_every_honest_upload_passes(given_rows, kind, M, rank, precision, bits, bias):
    Z, y = given_rows
    Z = np.abs(Z) if kind == "hellinger" else Z
    phi = fedran.RandomFeatures(Z.shape[1], M, kind, seed=len(y), bias=bias)
    s = fedran.summarize(phi(Z), y, rank, fingerprint=phi.fingerprint)
    check_one_site(s)
    try:
        decoded, rounding = of_wire(s, precision=precision, bits=bits)
    except fedran.Refused:  # `encode` cannot send directions that are rounding noise
        assume(precision == "mixed")
        raise
    check_one_site(decoded, rounding)


@many
@given(rows(), st.integers(1, 3))
def test_an_upload_that_was_shrunk_to_a_budget_passes(given_rows, few):
    Z, y = given_rows
    phi = fedran.RandomFeatures(Z.shape[1], 64, seed=1)
    s = fedran.summarize(phi(Z), y, None, fingerprint=phi.fingerprint)
    if s.rank > few:
        budget = len(fedran.encode(s.truncate(few, local=True))) + 40
        check_one_site(*of_wire(s, max_bytes=budget))


def honest(center="class", rank=6, kind="cosine", **options):
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((60, 8)) + 2 * np.eye(8)[rng.integers(3, size=60)]
    phi = fedran.RandomFeatures(8, 128, kind)
    y = [int(c) for c in rng.integers(3, size=60)]
    s = fedran.summarize(phi(Z), y, rank, center=center, fingerprint=phi.fingerprint)
    return of_wire(s, **options)


def with_accounts(s, **changes):
    return replace(s, accounts=replace(s.accounts, **changes))


def test_energy_declared_as_cut_beyond_the_smallest_value_sent_is_refused():
    s, rounding = honest()
    cut = s.accounts.cut + float(np.sum(s.sigma**2))
    liar = with_accounts(replace(s, factor=s.factor[:, :0]), cut=cut).validate()
    with pytest.raises(fedran.Refused, match="sigma_r"):
        check_one_site(liar, rounding)


def test_a_spectral_error_beyond_the_smallest_value_sent_is_refused():
    s, rounding = honest()
    rest = 2.5 * float(s.sigma[-1] ** 2)
    liar = with_accounts(s, eps_G=s.accounts.eps_quant + rest).validate()
    with pytest.raises(fedran.Refused, match=r"accounts\.eps_G"):
        check_one_site(liar, rounding)
    # Recorded merges allow more, but never more than the trace that was cut.
    merged = with_accounts(liar, merges=50, eps_G=s.accounts.eps_quant + 1.1 * s.accounts.cut)
    with pytest.raises(fedran.Refused, match=r"accounts\.eps_G"):
        check_one_site(merged, rounding)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("field", ["eps_quant", "eps_B"])
def test_more_quantisation_than_the_encoding_can_cause_is_refused(precision, field):
    s, rounding = honest(precision=precision)
    limit = {"eps_quant": rounding.gram, "eps_B": rounding.sums}[field]
    value = 1.01 * limit + 0.001 * s.accounts.energy
    more = {"eps_G": s.accounts.eps_G + value} if field == "eps_quant" else {}
    with pytest.raises(fedran.Refused, match=field):
        check_one_site(with_accounts(s, **{field: value}, **more), rounding)


def test_uncentred_summaries_are_not_those_of_a_site():
    with pytest.raises(fedran.Refused, match="center"):
        check_one_site(*honest(None))


@pytest.mark.parametrize("kind", ["cosine", "hellinger"])
def test_rows_have_the_energy_that_the_feature_map_gives_them(kind):
    phi = fedran.RandomFeatures(16, 512, kind, seed=1)
    low, high = row_energy_range(phi.fingerprint)
    Z = np.random.default_rng(1).random((4000, 16)) ** 3
    energies = np.sum(phi(Z) ** 2, axis=1)
    assert low < energies.min() < energies.max() < high
    assert row_energy_range(fedran.RandomFeatures(16, 512, "relu").fingerprint) is None


def test_energy_beyond_the_range_of_unit_rows_is_refused():
    phi = fedran.RandomFeatures(8, 512)
    _, high = row_energy_range(phi.fingerprint)
    H = phi(np.random.default_rng(0).standard_normal((30, 8)))
    H *= np.float32(np.sqrt(1.2 * high / np.mean(np.sum(H * H, axis=1))))
    s = fedran.summarize(H, [0] * 30, fingerprint=phi.fingerprint).validate()
    with pytest.raises(fedran.Refused, match="per row"):
        check_one_site(s)


def test_a_sum_is_not_checked_as_one_site():
    s, _ = honest()
    with pytest.raises(ValueError, match="got a sum"):
        check_one_site(s + s)
