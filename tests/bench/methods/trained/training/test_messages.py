"""Models as messages: what goes in comes out, and what is not ours is refused."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import deserialize
from safetensors.numpy import save

from fedran.core.errors import Refused
from fedran_bench.methods.trained.messages import (
    pack_tensors,
    unpack_tensors,
)

KINDS = {"float32": torch.float32, "uint8": torch.uint8, "int64": torch.int64}


def tensor(seed, shape, kind):
    values = np.random.default_rng(seed).integers(0, 200, shape)
    return torch.tensor(values, dtype=KINDS[kind])


def message(**more):
    fields = {"rows": 3, "classes": ["a", 1]}
    return pack_tensors("local-model", fields, {"w": torch.ones(4, 3), **more})


@given(
    st.dictionaries(
        st.text("abc/._", min_size=1, max_size=6),
        st.tuples(
            st.lists(st.integers(0, 4), min_size=1, max_size=4), st.sampled_from(sorted(KINDS))
        ),
        max_size=5,
    ),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_messages_survive_a_round_trip(shapes, seed):
    tensors = {n: tensor(seed, shape, kind) for n, (shape, kind) in shapes.items()}
    fields = {"task": seed, "classes": ["é", -4, "4", 2**60]}
    blob = pack_tensors("global-model", fields, tensors)
    assert blob == pack_tensors("global-model", fields, dict(reversed(tensors.items())))
    found = unpack_tensors("global-model", blob, "cpu")
    assert found.header.fields == {"kind": "global-model", **fields}
    assert found.tensors.keys() == tensors.keys()
    for name, given_ in tensors.items():
        assert found.tensors[name].dtype == given_.dtype
        assert torch.equal(found.tensors[name], given_)


def test_unpacked_tensors_are_writable_copies():
    blob = message()
    first = unpack_tensors("local-model", blob, "cpu").tensors["w"]
    first += 1
    assert torch.equal(unpack_tensors("local-model", blob, "cpu").tensors["w"], torch.ones(4, 3))


def test_a_message_of_another_kind_is_refused():
    with pytest.raises(Refused, match="kind: expected closing, got local-model"):
        unpack_tensors("closing", message(), "cpu")
    with pytest.raises(Refused, match="__metadata__: expected a value, got none"):
        unpack_tensors("closing", save({"w": np.ones(3, np.float32)}), "cpu")


@given(st.integers(0, 10**6), st.integers(1, 255))
@settings(max_examples=200, deadline=None)
def test_a_flipped_byte_of_the_header_is_refused_or_changes_the_message(place, change):
    blob = bytearray(message())
    length = 8 + int.from_bytes(blob[:8], "little")
    blob[place % length] ^= change
    try:
        found = unpack_tensors("local-model", bytes(blob), "cpu")
    except Refused:
        return
    deserialize(bytes(blob))  # what is accepted is a safetensors file by its library too
    assert found.header.fields["kind"] == "local-model"
    assert all(t.numel() * t.element_size() == 48 for t in found.tensors.values())


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**40, 9 * 2**20, 300])
def test_a_huge_header_length_is_refused_before_allocating(length):
    blob = length.to_bytes(8, "little") + message()[8:]
    with pytest.raises(Refused, match=r"message: expected a safetensors file, got .* ask again"):
        unpack_tensors("local-model", blob, "cpu")


@pytest.mark.parametrize("offsets", [[0, 11], [1, 13], [0, 24], [12, 0], [0, 2**60], [-12, 0]])
def test_offsets_that_do_not_fit_are_refused(offsets):
    entry = {"dtype": "F32", "shape": [3], "data_offsets": offsets}
    entries = {"__metadata__": {"fedran": '{"kind":"k"}'}, "w": entry}
    raw = json.dumps(entries).encode()
    blob = len(raw).to_bytes(8, "little") + raw + bytes(12)
    with pytest.raises(Refused, match=r"w(.data_offsets)?: expected "):
        unpack_tensors("k", blob, "cpu")


@pytest.mark.parametrize("shape", [[0, 2**62], [1] * 70, [0, 2**40, 2**40]])
def test_an_impossible_shape_is_refused(shape):
    n = 0 if 0 in shape else 4
    entries = {
        "__metadata__": {"fedran": '{"kind":"k"}'},
        "a": {"dtype": "F32", "shape": shape, "data_offsets": [0, n]},
    }
    raw = json.dumps(entries).encode()
    with pytest.raises(Refused):
        unpack_tensors("k", len(raw).to_bytes(8, "little") + raw + bytes(n), "cpu")


@given(
    st.dictionaries(
        st.text('aé/."\\ ', min_size=1, max_size=4),
        st.tuples(
            st.lists(st.integers(0, 3), min_size=0, max_size=3), st.sampled_from(sorted(KINDS))
        ),
        max_size=5,
    ),
    st.text(max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_messages_are_the_bytes_that_safetensors_writes(shapes, word):
    tensors = {n: tensor(0, shape, kind) for n, (shape, kind) in shapes.items()}
    text = json.dumps({"kind": "k", "word": word}, separators=(",", ":"))
    arrays = {n: np.ascontiguousarray(t.numpy()).reshape(t.shape) for n, t in tensors.items()}
    assert pack_tensors("k", {"word": word}, tensors) == save(arrays, {"fedran": text})


@pytest.mark.parametrize("extra", [1, 12])
def test_bytes_that_belong_to_no_tensor_are_refused(extra):
    with pytest.raises(Refused, match=f"message: expected 48 bytes of numbers, got {48 + extra}"):
        unpack_tensors("local-model", message() + bytes(extra), "cpu")
