"""Golden messages pin the format: files of the same major version must stay readable."""

import hashlib
import json
import struct
import zlib

import numpy as np
import pytest

import fedran
from helpers.wire.golden import (
    CLASSES,
    COUNTS,
    KERNEL_PRINT,
    PRINT,
    WHO,
    between,
    class_sums,
    coded_factor,
    float_factor,
    golden_head,
    golden_kernel_head,
    golden_points,
    golden_summary,
)
from helpers.wire.messages import FIXTURES, Message, fixture


def test_the_same_input_gives_the_same_bytes_in_another_process():
    """Hash seeds must not reach the bytes: fixtures were written by another process."""
    assert fedran.encode(golden_head()) == fixture("head")


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_golden_float_summaries_decode_to_the_known_numbers(precision):
    blob = fixture(precision)
    s = fedran.decode(blob)
    np.testing.assert_array_equal(s.factor, float_factor())
    np.testing.assert_array_equal(s.class_sums, class_sums(16))
    assert s.sigma.tolist() == [16.0, 4.0, 1.0]
    assert s.accounts.energy == 273.0 + 64.0 + 32.5
    assert s.center == "class"
    B = class_sums(16)
    np.testing.assert_array_equal(s.gram(), s.factor @ s.factor.T + B / COUNTS @ B.T)
    check_exact_accounts(s.accounts)
    check_names(s, blob)


def test_the_golden_uncentred_summary_decodes_to_the_known_numbers():
    s = fedran.decode(fixture("uncentred"))
    assert s.center is None
    np.testing.assert_array_equal(s.factor, float_factor())
    np.testing.assert_array_equal(s.class_sums, class_sums(16))
    np.testing.assert_array_equal(s.gram(), float_factor() @ float_factor().T)
    assert s.accounts.energy == 273.0 + 64.0
    check_exact_accounts(s.accounts)
    check_names(s, fixture("uncentred"))


def check_exact_accounts(accounts):
    assert (accounts.n_rows, accounts.cut, accounts.eps_quant) == (11, 64.0, 0.0)
    assert (accounts.eps_G, accounts.eps_G_fro, accounts.eps_B) == (48.0, 56.0, 0.0)


def test_the_golden_mixed_summary_decodes_to_the_known_numbers():
    blob = fixture("mixed")
    s = fedran.decode(blob)
    np.testing.assert_allclose(s.sigma, [112.0, 28.0, 7.0], rtol=1e-6)
    np.testing.assert_allclose(s.factor, coded_factor(), atol=1.0)
    np.testing.assert_allclose(s.class_sums, class_sums(6), atol=4 / 255)
    norms = np.linalg.norm(class_sums(6), axis=0)
    np.testing.assert_allclose(np.linalg.norm(s.class_sums, axis=0), norms, rtol=1e-15)
    assert s.accounts.energy == 112.0**2 + 28.0**2 + 7.0**2 + 64.0 + 16.5625
    assert s.center == "class"
    assert 0 < s.accounts.eps_quant < 100
    check_names(s, blob)


def check_names(s, blob):
    assert (s.classes, s.counts) == ((-3, 12, "ant", "été"), (4, 4, 1, 1))
    assert dict(s.fingerprint.fields) == {
        "backbone": "golden",
        "d": 3,
        "gain": 0.5,
        "note": None,
        "scaled": True,
        "seed": 7,
    }
    assert s.digest == hashlib.sha256(blob).hexdigest()


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_encoding_reproduces_the_golden_float_summaries(precision):
    assert fedran.encode(golden_summary(precision), precision) == fixture(precision)


def test_encoding_reproduces_the_golden_uncentred_summary():
    assert fedran.encode(golden_summary("float32", None), "float32") == fixture("uncentred")


def test_the_golden_head_decodes_to_the_known_numbers():
    head = fedran.decode(fixture("head"), fedran.Head)
    np.testing.assert_allclose(head.weights * 8, np.arange(12).reshape(4, 3) - 4, atol=1e-2)
    assert head.classes == (5, "ant", "été")
    assert (head.diagnosis.route, head.diagnosis.lam) == ("by hand", 2.5)
    assert (head.diagnosis.n_rows, head.diagnosis.eps_W_paper) == (9, 1.5)
    assert head.fingerprint == PRINT


def test_golden_points_decode_to_the_known_numbers_and_are_written_again():
    wanted, found = golden_points(), fedran.decode(fixture("points"), fedran.Points)
    np.testing.assert_allclose(found.means, wanted.means, atol=1e-5)  # norms have 16 bits
    for name in ("classes", "fingerprint"):
        assert getattr(found, name) == getattr(wanted, name)
    for name in ("codes", "counts"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist()
    assert fedran.encode(wanted) == fixture("points")


def test_the_golden_kernel_head_is_read_and_written_exactly():
    wanted, found = golden_kernel_head(), fedran.decode(fixture("kernel_head"), fedran.Head)
    np.testing.assert_array_equal(found.landmarks, wanted.landmarks)
    np.testing.assert_allclose(found.weights, wanted.weights, atol=1e-7)
    assert (found.scale, found.classes, found.fingerprint) == (0.25, wanted.classes, KERNEL_PRINT)
    assert found.diagnosis == wanted.diagnosis
    assert fedran.encode(wanted) == fixture("kernel_head")


def test_the_golden_aggregator_of_points_is_read_and_written_bit_for_bit():
    agg = fedran.decode(fixture("aggregator_points"), fedran.Aggregator)
    assert agg.absorbed == {("site-1", "may"): hashlib.sha256(fixture("points")).hexdigest()}
    assert agg.counts == {12: 5, "ant": 3, "été": 3}
    assert fedran.encode(agg) == fixture("aggregator_points")


@pytest.mark.parametrize("form", ["stack", "gram"])
def test_golden_aggregators_are_read_and_written_bit_for_bit(form, tmp_path):
    path = tmp_path / "state"
    path.write_bytes(fixture(f"aggregator_{form}"))
    agg = fedran.load(path)
    uploads = 1 if form == "stack" else 2
    F, B = float_factor(), class_sums(16)
    _, arrays = agg.sums.state()
    if form == "stack":
        np.testing.assert_array_equal(arrays["stack"] @ arrays["stack"].T, F @ F.T)
    else:
        np.testing.assert_array_equal(_full(arrays["gram"]), 2 * (F @ F.T + B / COUNTS @ B.T))
    np.testing.assert_array_equal(arrays["class_sums"], uploads * B.T)
    assert agg.counts == {c: uploads * n for c, n in zip(CLASSES, COUNTS, strict=True)}
    assert list(agg.absorbed) == [(w["client"], w["task"]) for w in WHO[:uploads]]
    first = fixture("uncentred" if form == "stack" else "float32")
    assert agg.absorbed["site-1", "may"] == hashlib.sha256(first).hexdigest()
    assert agg.accounts.energy == (337.0 if form == "stack" else 2 * (337.0 + between(16)))
    assert agg.fingerprint == PRINT
    assert fedran.encode(agg) == fixture(f"aggregator_{form}")


def test_the_golden_float32_summary_read_byte_by_byte():
    blob = fixture("float32")
    length = int.from_bytes(blob[:8], "little")
    entries = json.loads(blob[8 : 8 + length])
    assert list(entries) == ["__metadata__", "sigma", "directions", "sums"]
    fields = json.loads(entries["__metadata__"]["fedran"])
    assert (fields["format"], fields["version"]) == ("fedran", "3.0")
    assert (fields["kind"], fields["precision"]) == ("summary", "float32")
    assert (fields["out_features"], fields["rank"], fields["center"]) == (16, 3, "class")
    body = blob[8 + length :]
    assert struct.unpack("<3d", body[:24]) == (16.0, 4.0, 1.0)
    rows = np.array(struct.unpack("<48f", body[24 : 24 + 192])).reshape(3, 16)
    np.testing.assert_array_equal(rows.T * [16.0, 4.0, 1.0], float_factor())
    sums = np.array(struct.unpack("<64f", body[216:])).reshape(4, 16)
    np.testing.assert_array_equal(sums.T, class_sums(16))


def test_the_golden_mixed_summary_read_byte_by_byte():
    message = Message.of(fixture("mixed"))
    assert message.array("directions_bits").tolist() == [10, 7, 4]
    raw = zlib.decompress(message.tensors["directions"][2])
    leading = np.frombuffer(raw[:18], np.int8).reshape(3, 6).astype(int)
    assert len(raw) == 18 + 2  # two planes of low bits for the first row
    planes = [[byte >> (7 - i) & 1 for i in range(6)] for byte in raw[18:]]
    wide = 4 * leading[0] + planes[0] + 2 * np.array(planes[1])
    narrow = leading[1:]
    exact = coded_factor().T / [[96], [24], [6]] * [[511], [63], [7]]
    np.testing.assert_allclose([wide, *narrow], exact, atol=0.5 + 1e-9)
    rows = np.array([wide, *narrow], dtype=np.float64)
    rows *= np.array([[112.0], [28.0], [7.0]]) / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(fedran.decode(fixture("mixed")).factor.T, rows, rtol=1e-6)

    assert message.array("sums_bits").tolist() == [9, 9, 8, 8]
    raw = zlib.decompress(message.tensors["sums"][2])
    assert len(raw) == 6 * 4 + 2
    codes = np.frombuffer(raw[:24], np.int8).reshape(4, 6).astype(int)
    planes = [[byte >> (7 - i) & 1 for i in range(6)] for byte in raw[24:]]
    codes[:2] = 2 * codes[:2] + planes
    peaks, levels = np.array([4, 2, 1, 0.25]), np.array([255, 255, 127, 127])
    np.testing.assert_allclose(codes.T, class_sums(6) / peaks * levels, atol=0.5 + 1e-9)
    norms = message.array("sums_norm")
    np.testing.assert_allclose(norms**2, [49.75, 15.0, 0.0, 0.375], rtol=1e-15)
    lengths = np.linalg.norm(codes, axis=1)
    sums = codes * (norms / np.where(lengths > 0, lengths, 1))[:, None]
    np.testing.assert_allclose(fedran.decode(fixture("mixed")).class_sums.T, sums, rtol=1e-15)


def numbers(stream, n, *widths):
    """Vectors of n numbers of so many bytes, each written as planes of bytes."""
    found = []
    for width in widths:
        planes = [stream[k * n : (k + 1) * n] for k in range(width)]
        stream = stream[width * n :]
        found.append([sum(p[i] << 8 * k for k, p in enumerate(planes)) for i in range(n)])
    assert stream == b""
    return found


def means_by_hand(message):
    """The means of points, read number by number as docs/reference/wire-format.md says."""
    raw = {name: message.tensors[name][2] for name in message.tensors}
    d, n = message.fields["in_features"], sum(message.fields["points"])
    steps, table, low = numbers(zlib.decompress(raw["columns"]), d, 1, 1, 2)
    T, tables = max(table) + 1, zlib.decompress(raw["tables"])
    S = len(tables) // 2 // T
    (frequencies,) = numbers(tables, T * S, 2)
    norms, rows = numbers(zlib.decompress(raw["rows"]), n, 2, 6)
    L = min(1024, max(1, n * d // 1024))
    states = list(struct.unpack(f"<{L}I", raw["codes"][: 4 * L]))
    words = [w for (w,) in struct.iter_unpack("<H", raw["codes"][4 * L :])]
    codes = []
    for i in range(n * d):
        x, at = states[i % L], table[i // n] * S
        symbol, start = 0, 0
        while start + frequencies[at + symbol] <= x % 4096:
            start += frequencies[at + symbol]
            symbol += 1
        x = frequencies[at + symbol] * (x // 4096) + x % 4096 - start
        states[i % L] = 65536 * x + words.pop(0) if x < 2**16 else x
        codes.append(symbol)
    assert (words, set(states)) == ([], {2**16})
    low = [v - 2**16 if v >= 2**15 else v for v in low]
    size = [2.0 ** (s // 8 - 31) * round(2 ** (s % 8 / 8), 7) for s in steps]
    means = np.array([[(codes[j * n + i] + low[j]) * size[j] for j in range(d)] for i in range(n)])
    return means * (np.array(norms) / 65535 / np.linalg.norm(means, axis=1))[:, None], rows


def test_points_read_byte_by_byte():
    X = np.random.default_rng(0).standard_normal((150, 50)).astype(np.float32)
    rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    several_coders = fedran.encode(fedran.condense(rows, [0, 1] * 75, group_size=2))
    for blob in (fixture("points"), several_coders):
        found, (means, counts) = fedran.decode(blob), means_by_hand(Message.of(blob))
        np.testing.assert_allclose(found.means, means, atol=1e-6)
        assert found.counts.tolist() == counts


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.glob("*.txt")))
def test_checksums_of_the_golden_messages_computed_by_hand(name):
    blob = fixture(name.removesuffix(".txt"))
    assert len((FIXTURES / name).read_bytes()) < 8000
    assert Message.of(blob).bytes() == blob


def _full(gram: np.ndarray) -> np.ndarray:
    return np.tril(gram) + np.tril(gram, -1).T
