"""Summaries and heads through encode and decode: what arrives, and how large the error is."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedran
from fedran.core.sums.class_sums import ClassSums
from fedran.wire import summary_codec
from helpers.wire.messages import CENTERS, PRECISIONS, solved_head, summary

FORMS = [(p, 5.0) for p in PRECISIONS] + [("mixed", b) for b in (2.0, 3.5, 14.0)]


def error_norms(a: fedran.Summary, b: fedran.Summary) -> tuple[float, float, float]:
    """Spectral and Frobenius norms of the Grams' difference, Frobenius norm of the sums'."""
    difference = _gram(a) - _gram(b)
    return (
        np.linalg.norm(difference, 2),
        np.linalg.norm(difference),
        np.linalg.norm(a.class_sums - b.class_sums),
    )


def _gram(s: fedran.Summary) -> np.ndarray:
    """The Gram that a summary states, in float64, class by class."""
    F = s.factor.astype(np.float64)
    G = F @ F.T
    if s.center == "class":
        for b, n in zip(s.class_sums.T, s.counts, strict=True):
            G += np.outer(b, b) / n
    return G


def round_trip(s: fedran.Summary, precision: str = "mixed", bits: float = 5.0) -> fedran.Summary:
    return fedran.decode(fedran.encode(s, precision, bits=bits))


def assert_within_accounts(before: fedran.Summary, after: fedran.Summary) -> None:
    spectral, frobenius, sums = error_norms(before, after)
    old, new = before.accounts, after.accounts
    rounding = 1e-5 * old.energy
    assert spectral <= new.eps_G - old.eps_G + rounding
    assert frobenius <= new.eps_G_fro - old.eps_G_fro + rounding
    assert sums <= (new.eps_B - old.eps_B) * (1 + 1e-9) + 1e-12 * old.energy
    assert_energy_identity(after)
    before_norms, after_norms = (np.linalg.norm(s.class_sums, axis=0) for s in (before, after))
    np.testing.assert_allclose(after_norms, before_norms, rtol=1e-6, atol=1e-150)
    lost = 8 * np.finfo(np.float64).eps * new.eps_G  # in the difference of two large numbers
    assert new.eps_quant - old.eps_quant == pytest.approx(new.eps_G - old.eps_G, abs=lost)


def assert_energy_identity(s: fedran.Summary) -> None:
    """||F||^2 + cut (+ sum_c ||b_c||^2 / n_c) = energy, by the slow way."""
    total = float(np.sum(s.factor.astype(np.float64) ** 2)) + s.accounts.cut
    if s.center == "class":
        total += sum(float(b @ b) / n for b, n in zip(s.class_sums.T, s.counts, strict=True))
    assert total == pytest.approx(s.accounts.energy, rel=1e-5, abs=1e-290)


@pytest.mark.parametrize(("precision", "bits"), FORMS)
@pytest.mark.parametrize("labels", [(0, 7, -3), ("x", "ant"), (2, "2", "é")])
@pytest.mark.parametrize("center", CENTERS)
def test_every_field_arrives_and_only_values_are_rounded(precision, bits, labels, center):
    s = summary(n=60, M=40, rank=9, labels=labels, center=center)
    back = round_trip(s, precision, bits)
    assert (back.classes, back.counts, back.center) == (s.classes, s.counts, s.center)
    assert back.fingerprint == s.fingerprint
    assert back.factor.shape == s.factor.shape
    assert back.class_sums.shape == s.class_sums.shape
    assert back.class_sums.dtype == np.float64
    quantised = {"eps_G", "eps_G_fro", "eps_quant", "eps_B"}
    for name in s.accounts.__dataclass_fields__.keys() - quantised:
        assert getattr(back.accounts, name) == getattr(s.accounts, name)
    np.testing.assert_allclose(back.sigma, s.sigma, rtol=1e-6)
    norms = [np.linalg.norm(x.class_sums, axis=0) for x in (back, s)]
    np.testing.assert_allclose(*norms, rtol=1e-7 if precision == "float32" else 1e-14)
    assert np.any(back.class_sums != s.class_sums) or precision != "mixed"
    assert_energy_identity(back)


@pytest.mark.parametrize(("precision", "bits"), FORMS)
@pytest.mark.parametrize("center", CENTERS)
def test_the_accounts_state_the_exact_error(precision, bits, center):
    """With centring, eps_G also covers the rounding of the class sums."""
    s = summary(n=60, M=40, rank=9, center=center)
    back = round_trip(s, precision, bits)
    spectral, frobenius, sums = error_norms(s, back)
    rounding = 1e-6 * s.accounts.energy
    assert back.accounts.eps_G - s.accounts.eps_G == pytest.approx(spectral, abs=rounding)
    assert back.accounts.eps_G_fro - s.accounts.eps_G_fro == pytest.approx(frobenius, abs=rounding)
    assert back.accounts.eps_B == pytest.approx(sums, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("center", CENTERS)
def test_above_the_exact_number_of_columns_the_accounts_hold_a_bound(center, monkeypatch):
    s = summary(n=60, M=40, rank=9, center=center)
    exact = round_trip(s).accounts
    monkeypatch.setattr(summary_codec, "EXACT_ERROR_COLUMNS", 8)
    back = round_trip(s)
    assert_within_accounts(s, back)
    assert back.accounts.eps_G > exact.eps_G
    assert back.accounts.eps_G_fro > exact.eps_G_fro


@pytest.mark.parametrize("center", CENTERS)
def test_finer_precisions_lose_less(center):
    s = fedran.summarize(np.random.default_rng(0).random((60, 40)), [0] * 60, rank=9, center=center)
    forms = [("float64", 5), ("float32", 5), ("mixed", 8), ("mixed", 3)]
    losses = [round_trip(s, p, b).accounts.eps_quant for p, b in forms]
    assert losses == sorted(losses)
    assert losses[0] < 1e-8 * s.accounts.energy


@settings(max_examples=120, deadline=None)
@given(
    n=st.integers(0, 30),
    M=st.integers(1, 24),
    rank=st.none() | st.integers(1, 30),
    seed=st.integers(0, 99),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    dtype=st.sampled_from([np.float32, np.float64]),
    form=st.sampled_from(FORMS),
    center=st.sampled_from(CENTERS),
)
def test_any_shape_arrives_within_its_accounts(n, M, rank, seed, scale, dtype, form, center):
    rng = np.random.default_rng(seed)
    H = (np.maximum(rng.standard_normal((n, M)), 0) * scale).astype(dtype)
    s = fedran.summarize(H, rng.integers(0, 4, n), rank=rank, center=center)
    assert_within_accounts(s, round_trip(s, *form))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    M=st.integers(1, 16),
    rank=st.none() | st.integers(1, 16),
    seed=st.integers(0, 99),
    form=st.sampled_from(FORMS),
    center=st.sampled_from(CENTERS),
)
def test_sums_of_decoded_summaries_describe_all_rows(rows, M, rank, seed, form, center):
    """The sum is valid, and its Gram is within its own eps_G of the Gram of all rows."""
    rng = np.random.default_rng(seed)
    parts = [(rng.standard_normal((n, M)) + 1, rng.integers(0, 3, n)) for n in rows]
    total = sum(
        round_trip(fedran.summarize(H, y, rank=rank, center=center), *form) for H, y in parts
    )
    total.validate()
    assert_energy_identity(total)
    exact = sum(H.T @ H for H, _ in parts)
    rounding = 1e-6 * total.accounts.energy
    assert np.linalg.norm(exact - _gram(total), 2) <= total.accounts.eps_G + rounding
    sums = sum((ClassSums.from_rows(H, y) for H, y in parts), ClassSums.empty(M))
    assert (total.classes, total.counts) == (sums.classes, sums.counts)
    lost = np.linalg.norm(total.class_sums - sums.sums)
    assert lost <= total.accounts.eps_B * (1 + 1e-9) + 1e-9 * np.sqrt(total.accounts.energy)
    again = round_trip(total, *form)
    assert_within_accounts(total, again)


def skewed() -> fedran.Summary:
    """A summary whose factor has columns that are not orthogonal."""
    s = summary(rank=3)
    mix = np.array([[1.0, 1.0, 0.2], [0.0, 1.0, 0.4], [0.0, 0.0, 1.0]])
    skew = (s.factor @ mix).astype(np.float64)
    energy = float(np.sum(skew**2)) + s.sums.energy
    return replace(s, factor=skew, accounts=fedran.Accounts(n_rows=12, parts=1, energy=energy))


UNUSUAL = {
    "sum": lambda: summary(seed=1) + summary(seed=2, labels=("cat",)) + summary(seed=3),
    "sum wider than M": lambda: summary(n=16, rank=None) + summary(n=16, rank=None, seed=2),
    "repeated columns": lambda: summary(rank=2) + summary(rank=2),
    "columns not orthogonal": skewed,
    "uncentred sum": lambda: summary(seed=1, center=None) + summary(seed=2, center=None),
    "one row per class": lambda: summary(n=5, labels=tuple("abcde")),
    "a class sum of few large entries": lambda: fedran.summarize(
        np.r_[100.0, np.ones(999)][None, :], ["a"]
    ),
    "one-hot directions": lambda: fedran.summarize(
        np.diag([100.0, 10.0, 1.0, 0.01]) + 1e-4, list("aabb"), rank=None
    ),
}


@pytest.mark.parametrize(("precision", "bits"), FORMS)
@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_summaries_arrive_within_their_accounts(case, precision, bits):
    s = UNUSUAL[case]()
    assert_within_accounts(s, round_trip(s, precision, bits))


@pytest.mark.parametrize(("precision", "bits"), FORMS)
def test_summaries_without_rows_energy_or_classes_arrive(precision, bits):
    back = round_trip(fedran.summarize(np.zeros((0, 5)), []), precision, bits)
    assert (back.rank, back.classes, back.out_features) == (0, (), 5)
    back = round_trip(fedran.summarize(np.zeros((3, 5)), list("aab")), precision, bits)
    assert (back.rank, back.counts, back.accounts.energy) == (0, (2, 1), 0.0)
    assert not back.class_sums.any()


@pytest.mark.parametrize(("precision", "bits"), FORMS)
def test_a_class_sum_whose_squares_underflow_arrives(precision, bits):
    H = np.random.default_rng(0).random((4, 5)) * [[1.0], [1.0], [1e-170], [5e-324]]
    back = round_trip(fedran.summarize(H, list("aabc")), precision, bits)
    assert np.all(np.abs(back.class_sums[:, 1:]) <= 1e-170)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_directions_that_share_one_large_entry_get_more_bits(precision):
    """(e_0 + u) and (e_0 - u): coarse codes keep only e_0, so decoded rows would be parallel."""
    M = 70_000
    u = np.full(M - 1, 1 / np.sqrt(M - 1))
    F = np.stack([np.r_[1.0, u], np.r_[1.0, -u]], axis=1) * [3.0, 2.0]
    accounts = fedran.Accounts(n_rows=2, parts=1, energy=float(np.sum(F**2)))
    s = fedran.Summary(F, ClassSums.empty(M), accounts)
    assert round_trip(s, precision).rank == 2


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 1], [0, 1, 2, 3, 4]], ids=["two", "one row each"])
@pytest.mark.parametrize("scale", [1e-50, 1e-30, 1e15, 1e30, 1e45])
def test_any_scale_arrives_or_is_refused_by_the_encoder(precision, scale, center, labels):
    """Decode accepts what encode accepts, so a client notices a bad scale before it sends."""
    H = np.random.default_rng(0).random((5, 8)) * scale
    s = fedran.summarize(H, labels, rank=3, center=center)
    try:
        blob = fedran.encode(s, precision)
    except ValueError:
        assert not 1e-15 < scale < 1e16
        return
    back = fedran.decode(blob)
    np.testing.assert_allclose(back.sigma, s.sigma, rtol=1e-6)
    assert np.all(np.isfinite(back.gram_factor()))
    np.testing.assert_allclose(
        np.linalg.norm(back.gram_factor()), np.linalg.norm(s.gram_factor()), rtol=1e-6
    )


@pytest.mark.parametrize("precision", PRECISIONS)
def test_same_object_same_bytes_and_digest(precision):
    s = summary(n=60, M=40, rank=9)
    blob = fedran.encode(s, precision)
    assert blob == fedran.encode(s, precision) == fedran.encode(replace(s, digest="x"), precision)
    assert fedran.decode(blob).digest == hashlib.sha256(blob).hexdigest()
    assert fedran.decode(bytearray(blob)).digest == fedran.decode(memoryview(blob)).digest


def test_head_round_trip():
    head = solved_head()
    blob = fedran.encode(head)
    back = fedran.decode(blob, fedran.Head)
    assert (back.classes, back.fingerprint) == (head.classes, head.fingerprint)
    assert replace(back.diagnosis, eps_W=0.0) == replace(head.diagnosis, eps_W=0.0)
    lost = np.linalg.norm(back.weights.astype(np.float64) - head.weights)
    assert 0 < lost <= (back.diagnosis.eps_W - head.diagnosis.eps_W) * (1 + 1e-6) + 1e-15
    assert back.weights.dtype == np.float32
    assert back.digest == hashlib.sha256(blob).hexdigest()


def test_wrong_arguments_of_encode_and_decode_are_named():
    head, s = solved_head(), summary()
    wrong = {
        "got int": lambda: fedran.encode(3),
        "bfloat16": lambda: fedran.encode(s, "bfloat16"),
        "got 1.9": lambda: fedran.encode(s, bits=1.9),
        "got nan": lambda: fedran.encode(s, bits=float("nan")),
        "weights": lambda: fedran.encode(replace(head, weights=head.weights * np.nan)),
        "condition": lambda: fedran.encode(
            replace(head, diagnosis=replace(head.diagnosis, condition=float("inf")))
        ),
        "max_bytes": lambda: fedran.encode(head, max_bytes=10**6),
        "float32": lambda: fedran.encode(head, "float32"),
        "<class 'int'>": lambda: fedran.decode(b"", int),
        "got str": lambda: fedran.decode("text"),
    }
    for named, call in wrong.items():
        with pytest.raises((TypeError, ValueError), match=named):
            call()


def test_sums_beyond_float32_need_float64():
    s = fedran.summarize(np.full((1, 2), 1e10), ["a"])
    sums = replace(s.sums, sums=s.class_sums * 1e30, counts=(10**60,))
    many = replace(s, sums=sums, accounts=replace(s.accounts, n_rows=10**60))
    with pytest.raises(ValueError, match="use precision='float64'"):
        fedran.encode(many, "float32")
