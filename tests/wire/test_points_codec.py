"""Points as messages: round trips, sizes, and messages from strangers."""

import numpy as np
import pytest

from fedran.core.errors import Refused
from fedran.core.points import condense
from fedran.wire import columns
from fedran.wire.container import pack, unpack
from fedran.wire.points_codec import decode_points, encode_points
from fedran.wire.validation import DEFAULT_LIMITS


def made_up_rows(seed, n=None, d=None):
    rng = np.random.default_rng(seed)
    n, d = n or int(rng.integers(1, 200)), d or int(rng.integers(1, 90))
    y = rng.choice(["a", "b", 7], n)
    X = np.maximum(0, rng.standard_normal((n, d)) + (y == "a")[:, None]) ** 0.5
    X[:, 0] += 1e-3
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    return X, y.tolist()


def decoded(blob):
    return decode_points(unpack(blob, DEFAULT_LIMITS), DEFAULT_LIMITS)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("size", [1, 4])
def test_labels_counts_and_norms_come_back_and_means_nearly(seed, size):
    points = condense(*made_up_rows(seed), group_size=size)
    found = decoded(encode_points(points, 0.5))
    assert (found.classes, found.codes.tolist()) == (points.classes, points.codes.tolist())
    np.testing.assert_array_equal(found.counts, points.counts)
    norms = [np.linalg.norm(p.means.astype(np.float64), axis=1) for p in (found, points)]
    np.testing.assert_allclose(*norms, atol=2e-5)
    error = np.abs(found.means - points.means).max(axis=0)
    usual = 0.2 if points.deviation is None else points.deviation + points.deviation.max()
    assert (error <= 0.6 * usual + 1e-2).all()


def test_finer_steps_give_smaller_errors_and_larger_messages():
    points = condense(*made_up_rows(1, n=300, d=64))
    blobs = [encode_points(points, step) for step in (0.1, 0.5, 1.0, 2.0)]
    errors = [np.linalg.norm(decoded(blob).means - points.means) for blob in blobs]
    assert errors == sorted(errors)
    assert [len(b) for b in blobs] == sorted((len(b) for b in blobs), reverse=True)


@pytest.mark.parametrize("spread", [0.0, 1e-12, 1e-7, 1e-5])
def test_nearly_constant_columns_take_few_bytes(spread):
    """One column with another unit than the others leaves hardly any deviation to the rest."""
    rng = np.random.default_rng(0)
    X = spread * rng.standard_normal((300, 6))
    X[:, 0] += 1.0
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    points = condense(X, [0, 1, 2] * 100)
    blob = encode_points(points, 1.0)
    assert len(blob) < 5000
    np.testing.assert_allclose(decoded(blob).means, points.means, atol=1e-4)


def test_an_encoded_message_is_encoded_to_the_same_values_again():
    first = decoded(encode_points(condense(*made_up_rows(3)), 1.0))
    again = decoded(encode_points(first, 0.01))
    np.testing.assert_allclose(again.means, first.means, atol=2e-3)


def test_no_points_make_a_message():
    empty = condense(np.zeros((0, 5), np.float32), [])
    assert decoded(encode_points(empty, 1.0)).classes == ()


@pytest.mark.parametrize("seed", range(3))
def test_damaged_tensors_are_refused_or_give_points(seed):
    rng = np.random.default_rng(seed)
    points = condense(*made_up_rows(seed, n=60, d=20), group_size=2)
    message = unpack(encode_points(points, 1.0), DEFAULT_LIMITS)
    own = {"format", "version", "kind"}
    fields = {k: v for k, v in message.header.fields.items() if k not in own}
    refused = 0
    for _ in range(300):
        tensors = {name: t.tobytes() for name, t in message.tensors.items()}
        name = str(rng.choice(list(tensors)))
        damaged = bytearray(tensors[name])
        for _ in range(int(rng.integers(1, 4))):
            damaged[rng.integers(len(damaged))] = rng.integers(256)
        tensors[name] = bytes(damaged[: int(rng.integers(1, len(damaged) + 1))])
        try:
            decoded(pack("points", fields, tensors)).validate()
        except Refused:
            refused += 1
    assert refused > 250


def made_up_symbols(n, n_tables, n_symbols, seed):
    rng = np.random.default_rng(seed)
    tables = np.sort(rng.integers(0, n_tables, n))
    symbols = np.minimum(rng.geometric(0.4, n) - 1, n_symbols - 1)
    counts = np.zeros((n_tables, n_symbols), dtype=np.int64)
    np.add.at(counts, (tables, symbols), 1)
    counts[counts.sum(axis=1) == 0, 0] = 1
    return symbols, tables, counts


@pytest.mark.parametrize(
    ("n", "n_tables", "n_symbols"), [(0, 1, 1), (1, 2, 3), (4097, 3, 5), (90_000, 8, 300)]
)
def test_the_symbols_come_back_at_a_length_near_the_entropy(n, n_tables, n_symbols):
    symbols, tables, counts = made_up_symbols(n, n_tables, n_symbols, seed=n)
    freq = np.stack([columns.frequencies(row) for row in counts])
    stream = columns.encode_symbols(symbols, tables, freq)
    np.testing.assert_array_equal(columns.decode_symbols(stream, tables, freq, "stream"), symbols)
    share = freq[tables, symbols] / columns.TOTAL
    assert len(stream) <= 1.01 * -np.log2(share).sum() / 8 + 6 * columns.n_coders(n)


def test_every_symbol_that_occurs_has_a_frequency():
    counts = np.array([10**9, 0, 1, 1])
    found = columns.frequencies(counts)
    assert found.sum() == columns.TOTAL
    assert (found > 0).tolist() == [True, False, True, True]
    assert (
        columns.frequencies(np.ones(columns.TOTAL, dtype=np.int64)).tolist() == [1] * columns.TOTAL
    )
