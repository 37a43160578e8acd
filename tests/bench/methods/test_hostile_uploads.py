"""Uploads that no honest client sends are refused, and the server's state does not change.

What damaged bytes can do is tested once, in tests/wire. Here every method gets one truncated
message and one of another kind, then what only its own kind of message can get wrong.
"""

from functools import cache

import numpy as np
import pytest

from fedran_bench.methods.registry import make_method
from helpers.bench.hostile import INF, NAN, altered, at_first, frozen, make
from helpers.bench.toy_federation import distance, make_toy, with_images
from helpers.wire.messages import tampered

METHODS = {
    "gram": ("exact", "stsa", "fed3r"),
    "chunk-sums": ("stsa-e", "stsa-e-corrected"),
    "afl": ("afl", "afl-ridge-kept"),
    "class-sums": ("fedcof", "fedncm"),
    "moments": ("fedcgs", "gh-ofl-lda", "gh-ofl-fishermix"),
    "class-mixtures": ("fedpft",),
    "rows": ("send-features", "ranpac", "loranpac"),
    "rows-8bit": ("send-features-8bit",),
    "images": ("send-images",),
    "summary": (
        "fedran",
        "fedran-uncentred",
        "fedran-paper",
        "fedran-ssl",
        "fedran-prototype",
        "fedran-margin",
    ),
    "points": ("fedran-points",),
}
"""The methods that send each kind of message."""


def change(**changes):
    """An attack: replace some fields or tensors of an honest upload."""
    return lambda blob: altered(blob, **changes)


def wider(tensor):
    return np.concatenate([tensor, tensor[..., :1]], axis=-1)


def taller(tensor):
    return np.concatenate([tensor, tensor[:1]])


def float64(tensor):
    return tensor.astype(np.float64)


def huge(tensor):
    """Finite values whose sum over two clients is not."""
    return np.full_like(tensor, 3e38)


def of_width(columns):
    return lambda sums: np.ones((len(sums), columns), dtype=np.float32)


def scalar_sums(blob):
    """``sums`` as a tensor without dimensions, with a valid checksum."""
    return tampered(blob, lambda m: m.tensors.update(sums=("F32", [], bytes(4))))


ANY_KIND = {
    "the last byte missing": lambda blob: blob[:-1],
    "another kind": lambda blob: altered(blob, kind="head"),
}
LABELLED = {
    "classes out of order": change(classes=lambda c: c[::-1]),
    "one class too few": change(classes=lambda c: c[:-1]),
}
CODED = {
    "class number too high": change(codes=at_first(99)),
    "class numbers of three bytes": change(width=3),
}
ATTACKS = {
    "gram": {
        "gram too long": change(gram=wider),
        "gram in float64": change(gram=float64),
        "no gram": change(gram=None),
        "NaN in the gram": change(gram=at_first(NAN)),
        "infinity in the gram": change(gram=at_first(INF)),
        "a gram that overflows": change(gram=huge),
        "sums too wide": change(sums=wider),
        "sums of a class too many": change(sums=taller),
        "NaN in the sums": change(sums=at_first(NAN)),
        "infinity in the sums": change(sums=at_first(INF)),
        "no accounts": change(accounts=None),
    },
    "chunk-sums": {
        "NaN": change(sums=at_first(NAN)),
        "infinity": change(sums=at_first(INF)),
        "sums that overflow": change(sums=huge),
        "sums too wide": change(sums=wider),
        "class number too high": change(of_class=lambda v: [*v[:-1], 99]),
        "class number below zero": change(of_class=lambda v: [-1, *v[1:]]),
        "class number no integer": change(of_class=lambda v: [0.5, *v[1:]]),
        "an empty chunk": change(counts=lambda v: [0, *v[1:]]),
        "a count too few": change(counts=lambda v: v[1:]),
    },
    "afl": {
        "NaN in the gram": change(gram=at_first(NAN)),
        "NaN in the weights": change(weights=at_first(NAN)),
        "gram too long": change(gram=wider),
        "weights too wide": change(weights=wider),
        "weights of a class too many": change(weights=taller),
        "rows below zero": change(n_rows=-1),
        "a gram that is none": change(gram=lambda g: -1e6 - np.abs(g)),
    },
    "class-sums": {
        "NaN": change(sums=at_first(NAN)),
        "infinity": change(sums=at_first(-INF)),
        "sums of a class too many": change(sums=taller),
        "sums in one row": change(sums=lambda s: s.ravel()),
        "sums without dimensions": scalar_sums,
        "sums of width 1": change(sums=of_width(1)),
        "sums of width 3": change(sums=of_width(3)),
        "sums of width 20": change(sums=of_width(20)),
        "no sums": change(sums=None),
        "an empty class": change(counts=lambda v: [0, *v[1:]]),
        "a count too many": change(counts=lambda v: [*v, 1]),
    },
    "moments": {
        "gram too long": change(gram=wider),
        "gram in float64": change(gram=float64),
        "no gram": change(gram=None),
        "NaN in the gram": change(gram=at_first(NAN)),
        "a gram that overflows": change(gram=huge),
        "a gram of no rows": change(gram=np.negative),
        "squares below the squared sums": change(gram=lambda g: 0.1 * g),
        "sums too wide": change(sums=wider),
        "infinity in the sums": change(sums=at_first(INF)),
        "an empty class": change(counts=lambda v: [0, *v[1:]]),
        "a count too few": change(counts=lambda v: v[1:]),
        "a tensor too many": change(other=np.zeros(3)),
    },
    "class-mixtures": {
        "NaN in the means": change(means=at_first(NAN)),
        "infinity in the covariances": change(covariances=at_first(INF)),
        "a negative variance": change(covariances=at_first(-1.0)),
        "weights that add up to 2": change(weights=lambda w: 2 * w),
        "a negative weight": change(weights=lambda w: -w),
        "means too wide": change(means=wider),
        "means in float64": change(means=float64),
        "a component too many": change(means=taller, weights=taller, covariances=taller),
        "an empty class": change(counts=lambda v: [0, *v[1:]]),
        "more rows than a server can draw": change(counts=lambda v: [2**40, *v[1:]]),
        "too many rows in all classes together": change(counts=lambda v: [10**6] * len(v)),
    },
    "rows": {
        "rows too wide": change(rows=wider),
        "a row too many": change(rows=taller),
        "rows in float64": change(rows=float64),
        "NaN": change(rows=at_first(NAN)),
        "infinity": change(rows=at_first(INF)),
        "a value that overflows": change(rows=at_first(1e30)),
        "half a class number": change(codes=lambda c: c[1:]),
        "a class number too few": change(codes=lambda c: c[2:]),
        "n too high": change(n=lambda n: n + 1),
        **CODED,
    },
    "rows-8bit": {
        "rows too wide": change(rows=wider),
        "range too wide": change(range=wider),
        "range of three": change(range=taller),
        "NaN in the range": change(range=at_first(NAN)),
        "infinity in the range": change(range=at_first(INF)),
        "no range": change(range=None),
        "rows in float32": change(rows=lambda r: r.astype(np.float32)),
        **CODED,
    },
    "images": {
        "a length too few": change(lengths=lambda v: v[4:]),
        "half a length": change(lengths=lambda v: v[2:]),
        "a length too long": change(lengths=at_first(255)),
        "no images": change(blob=None),
        **CODED,
    },
    "summary": {},
    "points": {
        "a row too many": change(points=lambda n: [n[0] + 1, *n[1:]]),
        "a stream too short": change(codes=lambda c: c[:-8]),
        "a tensor too many": change(other=np.zeros(3)),
    },
}
CASES = [
    pytest.param(key, attack, id=f"{key}: {name}")
    for kind, keys in METHODS.items()
    for key in keys
    for name, attack in {
        **ANY_KIND,
        **({} if kind == "summary" else LABELLED),
        **ATTACKS[kind],
    }.items()
]


@cache
def honest_round(key, task):
    """A method's state before a task, its predictions, and the uploads of the task."""
    toy, method = with_images(make_toy(0)), make(key)
    state = toy.play(method, upto=task)
    said = method.predict(state, toy.X_test) if task else None
    return toy, method, state, said, toy.uploads(method, task)


def assert_refused(key, attack, task=1):
    """A hostile upload, alone and after honest ones: refused, and the state is as before."""
    toy, method, state, said, uploads = honest_round(key, task)
    before = frozen(state)
    hostile = {"client-0": attack(uploads["client-0"])}
    for honest in ({}, uploads):
        with pytest.raises(ValueError):
            method.aggregate(state, task, 0, {**honest, **hostile})
        assert frozen(state) == before
    if task:
        assert np.array_equal(method.predict(state, toy.X_test), said)


@pytest.mark.parametrize(("key", "attack"), CASES)
def test_a_round_with_a_hostile_upload_changes_nothing(key, attack):
    assert_refused(key, attack)


def test_afl_refuses_nan_weights_in_the_first_upload_of_all():
    assert_refused("afl", change(weights=at_first(NAN)), task=0)


def test_fedncm_refuses_sums_of_another_width_for_a_known_class():
    toy = make_toy(0)
    known = toy.uploads(make("fedncm"), 0)["client-0"]
    assert_refused("fedncm", lambda _: altered(known, sums=lambda s: s[:, :1]))


@pytest.mark.parametrize("key", METHODS["summary"])
@pytest.mark.parametrize(("M", "seed"), [(25, 0), (24, 1)], ids=["another M", "another seed"])
def test_a_summary_of_another_feature_map_is_refused(key, M, seed):
    toy = make_toy(0)
    other = make_method(key, {"out_features": M, "rank": 12})
    assert_refused(key, lambda _: toy.uploads(other, 1, seed)["client-0"])


@pytest.mark.parametrize("key", METHODS["gram"])
def test_resending_after_a_refusal_counts_everyone_once(key):
    toy, method = make_toy(0), make(key)
    state = toy.play(method, upto=1)
    good = toy.uploads(method, 1)
    with pytest.raises(ValueError):
        method.aggregate(state, 1, 0, {**good, "client-2": b""})
    state = method.aggregate(state, 1, 0, good)
    assert distance(state.total.gram(), toy.play(method, upto=2).total.gram()) < 1e-5
