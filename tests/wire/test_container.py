"""The container is a safetensors file with a version."""

import json
import struct

import numpy as np
import pytest
import safetensors.numpy

import fedran
from fedran.wire import container
from helpers.wire.golden import golden_aggregator
from helpers.wire.messages import PRECISIONS, Message, solved_head, summary, tampered


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_safetensors_library_reads_the_same_aligned_arrays(precision):
    blob = fedran.encode(summary(), precision)
    mine = Message.of(blob)
    (length,) = struct.unpack("<Q", blob[:8])
    entries = json.loads(blob[8 : 8 + length])
    assert (8 + length) % 8 == 0
    theirs = safetensors.numpy.load(blob)
    assert theirs.keys() == mine.tensors.keys()
    for name, array in theirs.items():
        assert array.dtype == mine.array(name).dtype
        np.testing.assert_array_equal(array, mine.array(name))
        assert entries[name]["data_offsets"][0] % array.dtype.itemsize == 0


def test_the_safetensors_library_reads_heads_and_aggregators(tmp_path):
    head = solved_head()
    loaded = safetensors.numpy.load(fedran.encode(head))
    weights = loaded["weights"] * loaded["weights_scale"][:, None]
    np.testing.assert_allclose(weights, head.weights.T, rtol=1e-3, atol=1e-3)
    agg = golden_aggregator("gram")
    fedran.save(agg, tmp_path / "state")
    with safetensors.safe_open(tmp_path / "state", "np") as file:
        assert set(file.keys()) == {"gram", "class_sums"}
        assert json.loads(file.metadata()["fedran"])["kind"] == "aggregator"


def test_big_endian_arrays_are_written_little_endian():
    a = np.arange(3, dtype=">f8")
    assert container.pack("x", {}, {"a": a}) == container.pack("x", {}, {"a": a.astype("<f8")})


@pytest.mark.parametrize("version", ["2.0", "2.7", "2.99"])
def test_newer_minor_versions_with_unknown_fields_are_read(version):
    blob = tampered(fedran.encode(summary()), lambda m: m.fields.update(version=version, novel=[1]))
    assert fedran.decode(blob).rank == 3


@pytest.mark.parametrize(
    ("version", "hint"),
    [
        ("3.0", "update fedran"),
        ("10.1", "update fedran"),
        ("0.1", "make it again"),
        ("1.99", "make it again"),
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda: fedran.encode(summary()),
        lambda: fedran.encode(solved_head()),
        lambda: fedran.encode(golden_aggregator("gram")),
    ],
    ids=["summary", "head", "aggregator"],
)
def test_other_major_versions_are_refused_with_a_hint(make, version, hint):
    blob = tampered(make(), lambda m: m.fields.update(version=version))
    with pytest.raises(fedran.Refused, match=rf"version: .*{hint}"):
        fedran.decode(blob)
