"""A refused round leaves no trace, whatever was wrong with it; and what small ridges demand."""

import json

import numpy as np
import pytest

from fedran.methods.analytic import ranpac
from fedran.methods.analytic.loranpac import LoRanPAC
from fedran.methods.registry import make_method
from fedran.wire import container
from helpers.hostile import INF, NAN, altered, at_first, make
from helpers.loranpac_reference import pipeline
from helpers.toy_federation import distance, in_order, make_toy, ridge, with_images


def outcome(key, attack, before=("client-1", "client-2"), upto=1):
    """How the hostile upload was answered; whether the state and its predictions stayed."""
    toy, method = with_images(make_toy(0)), make(key)
    state = toy.play(method, upto=upto)
    held = method.dump(state)
    said = method.predict(state, toy.X_test) if upto else None
    uploads = toy.uploads(method, upto)
    honest = {n: uploads[n] for n in before}
    answer = "accepted"
    try:
        method.aggregate(state, upto, 0, {**honest, "client-0": attack(uploads["client-0"])})
    except Exception as reason:
        answer = type(reason).__name__
    try:
        after = method.dump(state)
    except Exception as reason:
        after = f"dump raises {type(reason).__name__}"
    return (
        answer,
        after == held,
        said is None or np.array_equal(method.predict(state, toy.X_test), said),
    )


REFUSED = (("Refused", True, True), ("ValueError", True, True), ("LinAlgError", True, True))


@pytest.mark.parametrize(
    "key", ["exact", "stsa", "fed3r", "fedran", "fedran-paper", "fedran-margin"]
)
def test_a_broken_last_upload_leaves_none_of_the_earlier_ones_behind(key):
    assert outcome(key, lambda b: b[:-1]) in REFUSED


@pytest.mark.parametrize("key", ["exact", "stsa", "fed3r"])
def test_resending_after_a_refusal_counts_everyone_once(key):
    toy, method = make_toy(0), make(key)
    state = toy.play(method, upto=1)
    good = toy.uploads(method, 1)
    with pytest.raises(ValueError):
        method.aggregate(state, 1, 0, {**good, "client-2": b""})
    state = method.aggregate(state, 1, 0, good)
    assert distance(method.gram(state)[1], method.gram(toy.play(method, upto=2))[1]) < 1e-5


@pytest.mark.parametrize("key", ["exact", "stsa", "fed3r"])
def test_accounts_are_read_before_anything_is_added(key):
    assert outcome(key, lambda b: altered(b, accounts=None), before=()) in REFUSED


@pytest.mark.parametrize("key", ["exact", "stsa", "fed3r"])
@pytest.mark.parametrize("field", ["gram", "sums"])
@pytest.mark.parametrize("value", [NAN, INF])
def test_nan_in_a_gram_message_is_refused(key, field, value):
    assert outcome(key, lambda b: altered(b, **{field: at_first(value)}), before=()) in REFUSED


@pytest.mark.parametrize("key", ["send-features"])
@pytest.mark.parametrize("value", [NAN, INF, 1e30])
def test_nan_or_overflow_in_sent_rows_is_refused(key, value):
    assert outcome(key, lambda b: altered(b, rows=at_first(value)), before=()) in REFUSED


@pytest.mark.parametrize("value", [NAN, INF])
def test_nan_in_the_range_of_8_bit_rows_is_refused(value):
    assert (
        outcome("send-features-8bit", lambda b: altered(b, range=at_first(value)), before=())
        in REFUSED
    )


@pytest.mark.parametrize("key", ["stsa-e", "stsa-e-corrected", "exact", "fed3r"])
def test_finite_sums_that_would_overflow_the_gram_are_refused(key):
    field = "gram" if key in ("exact", "fed3r") else "sums"
    assert (
        outcome(key, lambda b: altered(b, **{field: lambda a: a * 0 + np.float32(3e38)})) in REFUSED
    )


def test_afl_refuses_nan_weights_from_the_first_client():
    assert outcome("afl", lambda b: altered(b, weights=at_first(NAN)), before=(), upto=0) in REFUSED


@pytest.mark.parametrize("columns", [1, 3, 20])
def test_fedncm_refuses_sums_of_another_width(columns):
    def attack(blob):
        return altered(blob, sums=lambda s: np.ones((len(s), columns), dtype=np.float32))

    assert outcome("fedncm", attack, before=()) in REFUSED


def test_fedncm_refuses_sums_of_width_one_for_a_known_class():
    toy, method = make_toy(0), make("fedncm")
    state = toy.play(method, upto=1)
    blob = altered(toy.uploads(method, 0)["client-0"], sums=lambda s: s[:, :1])
    with pytest.raises(ValueError):
        method.aggregate(state, 1, 0, {"client-0": blob})


@pytest.mark.parametrize("key", ["send-features", "send-features-8bit", "send-images", "loranpac"])
def test_class_numbers_of_three_bytes_are_refused(key):
    assert outcome(key, lambda b: altered(b, width=3)) in REFUSED


def scalar_sums(blob):
    """The same message with ``sums`` as a tensor of no dimension, checksum right."""
    message = container.unpack(blob, container.Limits(2**30))
    text = json.dumps(message.header.fields)
    a = np.float32(1.0).reshape(())
    entries = {
        "__metadata__": {"fedran": text, "sha256": container._checksum(text, {"sums": a})},
        "sums": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
    }
    raw = json.dumps(entries).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + a.tobytes()


@pytest.mark.parametrize("key", ["fedcof", "fedncm"])
def test_sums_without_dimensions_are_refused(key):
    assert outcome(key, scalar_sums) in REFUSED


def test_ranpac_searches_as_a_float64_grid_search_does_with_few_rows():
    rng = np.random.default_rng(1)
    H = rng.standard_normal((60, 300))
    codes = (H[:, :3] + 0.01 * rng.standard_normal((60, 3))).argmax(axis=1)
    H = H.astype(np.float32)
    F, rest, Y, errors = H[:48].astype(float), H[48:].astype(float), np.eye(3)[codes], {}
    for k in range(-8, 9):
        W = np.linalg.solve(F.T @ F + 10.0**k * np.eye(300), F.T @ Y[:48])
        errors[10.0**k] = np.mean((rest @ W - Y[48:]) ** 2)
    assert ranpac.search(H, codes, 3) == min(errors, key=errors.get)


@pytest.mark.parametrize(("d", "rows", "M"), [(32, 60, 400), (128, 150, 1500)])
def test_loranpac_weights_equal_the_float64_pipeline(d, rows, M):
    toy = make_toy(0, d=d, rows=rows)
    assert distance(toy.play(LoRanPAC(M)).head.weights, pipeline(toy, M, 0)[0]) < 1e-2


def test_fedcof_refuses_a_negative_gamma():
    with pytest.raises(ValueError):
        make_method_value("fedcof", gamma=-1.0)


@pytest.mark.parametrize(
    ("key", "name", "value"),
    [
        ("stsa", "lam", -1.0),
        ("stsa", "lam", NAN),
        ("stsa-e", "lam", 0.0),
        ("fed3r", "lam", 0.0),
        ("fedran-paper", "lam", -1.0),
        ("fedran", "rank", 0),
        ("fedran", "precision", "float33"),
        ("fedran-prototype", "tau", 5.0),
        ("fedran-margin", "margin", -1.0),
        ("exact", "out_features", 0),
    ],
)
def test_impossible_values_are_refused_before_a_run_starts(key, name, value):
    with pytest.raises(ValueError):
        make_method_value(key, **{name: value})


def make_method_value(key, **values):
    return make_method(key, values)


NOTHING = [
    "exact",
    "stsa",
    "fed3r",
    "fedcof",
    "ranpac",
    "send-features",
    "send-features-8bit",
    "send-images",
]
CASES = [(key, what) for key in NOTHING for what in ("no rows", "no labels")]


@pytest.mark.parametrize(("key", "what"), CASES)
def test_a_first_task_with_nothing_in_it_is_passed_over(key, what):
    toy, method = with_images(make_toy(0)), make(key)
    for k, (X, y) in enumerate(toy.tasks[0]):
        keep = len(X) if what == "no labels" else 0
        images = toy.images[0, k][:keep]
        toy.tasks[0][k] = (X[:keep], [None] * keep if what == "no labels" else y[:keep])
        toy.images[0, k] = images
    state = method.init(toy.spec, 0)
    state = method.aggregate(state, 0, 0, toy.uploads(method, 0))
    state = method.aggregate(state, 1, 0, toy.uploads(method, 1))
    assert len(method.predict(state, toy.X_test)) == 200


@pytest.mark.parametrize("key", ["afl", "loranpac"])
def test_zero_features_have_no_direction_to_solve_in(key):
    toy, method = make_toy(0), make(key)
    toy.tasks[0] = [(0 * X, y) for X, y in toy.tasks[0]]
    with pytest.raises(ValueError, match="all features are zero"):
        method.aggregate(method.init(toy.spec, 0), 0, 0, toy.uploads(method, 0))


@pytest.mark.parametrize("lam", [1e-2, 1e-4, 1e-6])
def test_ranpac_weights_are_right_at_a_small_lambda_and_fewer_rows_than_M(lam, monkeypatch):
    monkeypatch.setattr(ranpac, "search", lambda *_: lam)
    toy = make_toy(0, d=64)
    X, y = toy.pooled()
    P = np.random.RandomState(0).standard_normal((64, 300)).astype(np.float32)
    H = np.maximum(X.astype(np.float32) @ P, 0).astype(float)
    W = ridge(H, y, in_order(y), lam)
    assert distance(toy.play(ranpac.RanPAC(300)).head.weights, W) < 1e-2
