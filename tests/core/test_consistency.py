"""The energy that rows of a feature map can have: honest summaries always pass."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedran
from fedran.core.features import row_energy_range

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


@many
@given(rows(), st.sampled_from(["cosine", "hellinger"]), st.integers(8, 96), st.booleans())
def test_every_honest_summary_passes(given_rows, kind, M, bias):
    Z, y = given_rows
    Z = np.abs(Z) if kind == "hellinger" else Z
    phi = fedran.RandomFeatures(Z.shape[1], M, kind, seed=len(y), bias=bias)
    s = fedran.summarize(phi(Z), y, None, fingerprint=phi.fingerprint)
    fedran.decode(fedran.encode(s, "float32"), fedran.Summary)  # it validates


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
    s = fedran.summarize(H, [0] * 30, fingerprint=phi.fingerprint)
    with pytest.raises(fedran.Refused, match="per row"):
        s.validate()
