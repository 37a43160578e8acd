"""The container is a safetensors file with a version."""

import json
import struct

import numpy as np
import pytest
import safetensors.numpy

import fedran
from fedran.wire import container
from helpers.wire.messages import PRECISIONS, Message, summary, tampered


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


def test_big_endian_arrays_are_written_little_endian():
    a = np.arange(3, dtype=">f8")
    assert container.pack("x", {}, {"a": a}) == container.pack("x", {}, {"a": a.astype("<f8")})


@pytest.mark.parametrize("version", ["3.0", "3.7", "3.99"])
def test_newer_minor_versions_with_unknown_fields_are_read(version):
    blob = tampered(fedran.encode(summary()), lambda m: m.fields.update(version=version, novel=[1]))
    assert fedran.decode(blob).rank == 3


@pytest.mark.parametrize(
    ("version", "hint"),
    [
        ("4.0", "update fedran"),
        ("1.99", "make it again"),
    ],
)
def test_other_major_versions_are_refused_with_a_hint(version, hint):
    blob = tampered(fedran.encode(summary()), lambda m: m.fields.update(version=version))
    with pytest.raises(fedran.Refused, match=rf"version: .*{hint}"):
        fedran.decode(blob)
