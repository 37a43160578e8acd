"""Uploads that no honest client sends: refused, and the server is what it was before."""

import numpy as np
import pytest

from fedran.methods.registry import make_method
from helpers.hostile import INF, NAN, altered, at_first, make
from helpers.toy_federation import make_toy, with_images

KINDS = {
    "gram": ("exact", "stsa", "fed3r"),
    "chunk-sums": ("stsa-e", "stsa-e-corrected"),
    "afl": ("afl",),
    "class-sums": ("fedcof", "fedncm"),
    "rows": ("send-features", "ranpac", "loranpac"),
    "rows-8bit": ("send-features-8bit",),
    "images": ("send-images",),
    "summary": ("fedran", "fedran-paper", "fedran-prototype"),
}
ALL_OR_NOTHING = (
    "gram",
    "summary",
    "chunk-sums",
    "afl",
    "class-sums",
    "rows",
    "rows-8bit",
    "images",
)
"""Kinds whose server reads every upload of a round before it takes any in."""


def wider(tensor):
    return np.concatenate([tensor, tensor[..., :1]], axis=-1)


def taller(tensor):
    return np.concatenate([tensor, tensor[:1]])


EVERY_KIND = {
    "nothing": lambda blob: b"",
    "the beginning only": lambda blob: blob[:40],
    "the last byte missing": lambda blob: blob[:-1],
    "one byte more": lambda blob: blob + b"\0",
    "one byte changed": lambda blob: blob[:-3] + bytes([blob[-3] ^ 1]) + blob[-2:],
    "no safetensors": lambda blob: b"\xff" * 200,
    "another kind": lambda blob: altered(blob, kind="head"),
}
OWN_FORMAT = {
    "classes missing": lambda blob: altered(blob, classes=None),
    "classes out of order": lambda blob: altered(blob, classes=lambda c: c[::-1]),
    "a class twice": lambda blob: altered(blob, classes=lambda c: [c[0]] * len(c)),
    "one class too few": lambda blob: altered(blob, classes=lambda c: c[:-1]),
    "a class that is no label": lambda blob: altered(blob, classes=lambda c: [1.5] * len(c)),
}
ATTACKS = {
    "gram": {
        "gram too long": lambda blob: altered(blob, gram=wider),
        "gram in float64": lambda blob: altered(blob, gram=lambda g: g.astype(np.float64)),
        "no gram": lambda blob: altered(blob, gram=None),
        "sums too wide": lambda blob: altered(blob, sums=wider),
        "sums of a class too many": lambda blob: altered(blob, sums=taller),
    },
    "chunk-sums": {
        "NaN": lambda blob: altered(blob, sums=at_first(NAN)),
        "infinity": lambda blob: altered(blob, sums=at_first(INF)),
        "sums too wide": lambda blob: altered(blob, sums=wider),
        "class number too high": lambda blob: altered(blob, of_class=lambda v: [*v[:-1], 99]),
        "class number below zero": lambda blob: altered(blob, of_class=lambda v: [-1, *v[1:]]),
        "class number no integer": lambda blob: altered(blob, of_class=lambda v: [0.5, *v[1:]]),
        "an empty chunk": lambda blob: altered(blob, counts=lambda v: [0, *v[1:]]),
        "a count too few": lambda blob: altered(blob, counts=lambda v: v[1:]),
    },
    "afl": {
        "NaN in the gram": lambda blob: altered(blob, gram=at_first(NAN)),
        "NaN in the weights": lambda blob: altered(blob, weights=at_first(NAN)),
        "gram too long": lambda blob: altered(blob, gram=wider),
        "weights too wide": lambda blob: altered(blob, weights=wider),
        "weights of a class too many": lambda blob: altered(blob, weights=taller),
        "rows below zero": lambda blob: altered(blob, n_rows=-1),
        "a gram that is none": lambda blob: altered(blob, gram=lambda g: -1e6 - np.abs(g)),
    },
    "class-sums": {
        "NaN": lambda blob: altered(blob, sums=at_first(NAN)),
        "infinity": lambda blob: altered(blob, sums=at_first(-INF)),
        "sums of a class too many": lambda blob: altered(blob, sums=taller),
        "sums in one row": lambda blob: altered(blob, sums=lambda s: s.ravel()),
        "no sums": lambda blob: altered(blob, sums=None),
        "an empty class": lambda blob: altered(blob, counts=lambda v: [0, *v[1:]]),
        "a count too many": lambda blob: altered(blob, counts=lambda v: [*v, 1]),
    },
    "rows": {
        "rows too wide": lambda blob: altered(blob, rows=wider),
        "a row too many": lambda blob: altered(blob, rows=taller),
        "rows in float64": lambda blob: altered(blob, rows=lambda r: r.astype(np.float64)),
        "class number too high": lambda blob: altered(blob, codes=at_first(99)),
        "half a class number": lambda blob: altered(blob, codes=lambda c: c[1:]),
        "a class number too few": lambda blob: altered(blob, codes=lambda c: c[2:]),
        "n too high": lambda blob: altered(blob, n=lambda n: n + 1),
        "class numbers of five bytes": lambda blob: altered(blob, width=5),
    },
    "rows-8bit": {
        "rows too wide": lambda blob: altered(blob, rows=wider),
        "range too wide": lambda blob: altered(blob, range=wider),
        "range of three": lambda blob: altered(blob, range=taller),
        "no range": lambda blob: altered(blob, range=None),
        "rows in float32": lambda blob: altered(blob, rows=lambda r: r.astype(np.float32)),
        "class number too high": lambda blob: altered(blob, codes=at_first(99)),
    },
    "images": {
        "a length too few": lambda blob: altered(blob, lengths=lambda v: v[4:]),
        "half a length": lambda blob: altered(blob, lengths=lambda v: v[2:]),
        "a length too long": lambda blob: altered(blob, lengths=at_first(255)),
        "no images": lambda blob: altered(blob, blob=None),
        "class number too high": lambda blob: altered(blob, codes=at_first(99)),
    },
    "summary": {},
}


def cases(kinds):
    return [
        pytest.param(key, attack, id=f"{key}: {name}")
        for kind in kinds
        for key in KINDS[kind]
        for name, attack in {
            **EVERY_KIND,
            **({} if kind == "summary" else OWN_FORMAT),
            **ATTACKS[kind],
        }.items()
    ]


def refused(key, attack, before=()):
    """Task 1 with honest uploads first and a hostile one last: what the server was and is."""
    toy, method = with_images(make_toy(0)), make(key)
    state = toy.play(method, upto=1)
    held, said = method.dump(state), method.predict(state, toy.X_test)
    uploads = toy.uploads(method, 1)
    honest = {name: uploads[name] for name in before}
    with pytest.raises(ValueError):
        method.aggregate(state, 1, 0, {**honest, "client-0": attack(uploads["client-0"])})
    assert np.array_equal(method.predict(state, toy.X_test), said)
    return held, method.dump(state)


@pytest.mark.parametrize(("key", "attack"), cases(KINDS))
def test_a_hostile_upload_changes_nothing(key, attack):
    before, after = refused(key, attack)
    assert after == before


@pytest.mark.parametrize(("key", "attack"), cases(KINDS))
def test_a_hostile_upload_takes_the_honest_ones_before_it_along(key, attack):
    before, after = refused(key, attack, before=("client-1", "client-2"))
    assert after == before


@pytest.mark.parametrize("key", KINDS["summary"])
@pytest.mark.parametrize(("M", "seed"), [(25, 0), (24, 1)], ids=["another M", "another seed"])
def test_a_summary_of_another_feature_map_is_refused(key, M, seed):
    toy = make_toy(0)
    other = make_method(key, {"out_features": M, "rank": 12})
    refused(key, lambda blob: toy.uploads(other, 1, seed)["client-0"])


@pytest.mark.parametrize("key", [key for keys in KINDS.values() for key in keys])
def test_an_honest_message_survives_the_tool_that_alters(key):
    toy, method = with_images(make_toy(0)), make(key)
    blob = toy.uploads(method, 0)["client-0"]
    assert altered(blob) == blob
