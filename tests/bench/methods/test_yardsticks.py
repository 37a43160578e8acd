"""Methods that send every row: the same head as Exact, and what 8 bits or images lose."""

import numpy as np
import pytest

from fedran.wire.container import unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.gram_based import Exact
from fedran_bench.methods.protocol import ClientData
from fedran_bench.methods.yardsticks import (
    SendFeatures,
    SendFeatures8Bit,
    SendImages,
    compand,
    expand,
    pack_rows,
    unpack_images,
)
from helpers.bench.toy_federation import (
    assert_labels,
    distance,
    in_order,
    make_toy,
    random_features,
    ridge,
    with_images,
)

M = 40
IMAGES = [b"", b"\x00", b"\xff" * 300, b"\x00\x01\x02", b"abc"]


def root(x):
    return np.sign(x) * np.sqrt(np.abs(x))


@pytest.mark.parametrize("method", [SendFeatures(M), SendImages(M)], ids=["features", "images"])
@pytest.mark.parametrize(("seed", "kind"), [(0, "int"), (1, "str"), (2, "mixed")])
def test_the_head_is_that_of_exact_and_of_the_dense_ridge(method, seed, kind):
    toy = with_images(make_toy(seed, kind))
    state, exact = toy.play(method, seed), toy.play(Exact(M), seed)
    X, y = toy.pooled()
    H, classes = random_features(X, M, seed), in_order(y)
    wanted = ridge(H, y, classes, 0.03 * np.mean(np.sum(H * H, axis=1)))
    assert list(state.head.classes) == classes
    assert distance(state.head.weights, exact.head.weights) < 1e-4
    assert distance(state.head.weights, wanted) < 1e-3
    scores = random_features(toy.X_test, M, seed) @ wanted
    assert_labels(method.predict(state, toy.X_test), scores, classes, clear=1e-2)


def test_eight_bits_give_the_head_of_the_rows_that_they_tell():
    toy = make_toy(1)
    state = toy.play(SendFeatures8Bit(M))
    told = [
        (expand(parts["rows"], parts["range"]), y)
        for task in toy.tasks
        for X, y in task
        for parts in [compand(X)]
    ]
    H = random_features(np.concatenate([X for X, _ in told]), M, 0)
    y = [c for _, labels in told for c in labels]
    wanted = ridge(H, y, in_order(y), 0.03 * np.mean(np.sum(H * H, axis=1)))
    assert distance(state.head.weights, wanted) < 1e-3
    assert 1e-4 < distance(state.head.weights, toy.play(Exact(M)).head.weights) < 0.1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["signed", "positive", "negative", "wide", "constant", "one row"])
def test_eight_bits_are_within_half_a_step_of_the_root(seed, kind):
    X = np.random.default_rng(seed).standard_normal((50, 6))
    X = {
        "signed": X,
        "positive": np.abs(X),
        "negative": -np.abs(X),
        "wide": X * 10.0 ** np.arange(-3, 3),
        "constant": np.where(np.arange(6) % 2, X, [0.0, 1, -2.5, 1, 1e4, 1]),
        "one row": X[:1],
    }[kind].astype(np.float32)
    parts = compand(X)
    assert parts["rows"].dtype == np.uint8
    told = expand(parts["rows"], parts["range"]).astype(np.float64)
    for column, back in zip(X.T.astype(np.float64), told.T, strict=True):
        step = (root(column).max() - root(column).min()) / 255
        worst = np.abs(root(back) - root(column)).max()
        assert worst <= 0.5 * step + 1e-5 * np.abs(root(column)).max()
        if step > 0:
            assert worst > 0.2 * step or len(column) < 10


@pytest.mark.parametrize("images", [IMAGES, IMAGES[:1], []], ids=["several", "one empty", "none"])
def test_images_come_out_of_the_message_as_they_went_in(images):
    y = [f"k{i % 2}" for i in range(len(images))]
    data = ClientData("c", "0", np.zeros((len(images), 3)), y, images)
    assert unpack_images(SendImages(M).client(None, b"", data, 0)[1]) == (images, y)


def test_images_without_a_label_stay_at_home():
    data = ClientData("c", "0", np.zeros((5, 3)), [1, None, 2, None, 1], IMAGES)
    found, labels = unpack_images(SendImages(M).client(None, b"", data, 0)[1])
    assert found == IMAGES[::2]
    assert labels == [1, 2, 1]


@pytest.mark.parametrize(
    "lengths", [[3, 4], [3, 3], [2, 3, 1], [6], [], [2**32 - 1, 7]], ids=lambda v: f"{v}"
)
def test_lengths_that_do_not_fit_the_images_are_refused(lengths):
    tensors = {
        "blob": np.frombuffer(b"abcdef", dtype=np.uint8)[: 5 if lengths == [3, 3] else 6],
        "lengths": np.frombuffer(np.array(lengths, dtype="<u4").tobytes(), dtype=np.uint8),
    }
    blob = pack_rows("images", ("a",), np.zeros(2, dtype=np.int64), tensors)
    with pytest.raises(ValueError, match="lengths"):
        unpack_images(blob)


@pytest.mark.parametrize("n_classes", [2, 2**16, 2**16 + 1])
def test_class_numbers_take_two_bytes_or_four(n_classes):
    codes = np.array([0, n_classes - 1, 1])
    message = unpack(pack_rows("rows", tuple(range(n_classes)), codes, {}), FILE_LIMITS)
    width = 2 if n_classes <= 2**16 else 4
    assert message.header.integer("width") == width
    assert np.frombuffer(message.stream("codes"), f"<u{width}").tolist() == codes.tolist()


def test_without_images_it_says_what_is_missing():
    toy = make_toy()
    with pytest.raises(ValueError, match="needs the images"):
        SendImages(M).init(toy.spec, 0)
    with pytest.raises(ValueError, match="needs the images"):
        SendImages(M).client(None, b"", toy.data(0, 0), 0)
