"""Odd sizes, old labels, hostile messages: what a trainer is told when something does not fit."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fedran.bench.run.runner import Run, run  # noqa: E402
from fedran.core.errors import Refused  # noqa: E402
from fedran.data.dataset import as_images, image_dataset  # noqa: E402
from fedran.data.images import ArrayImages, ImageSet  # noqa: E402
from fedran.methods.protocol import ClientData, Spec  # noqa: E402
from fedran.methods.trained.training.messages import (  # noqa: E402
    pack_tensors,
    unpack_tensors,
)
from helpers.toy_training import Rounds, make_images, make_tasks, quick  # noqa: E402


@pytest.fixture
def images():
    return make_images()


@pytest.fixture
def tasks(images):
    return make_tasks(images)


def blank(height, width, n=24):
    """Images without features."""
    X = np.random.default_rng(0).integers(0, 256, (n, height, width, 3), dtype=np.uint8)
    y = np.arange(n) % 4
    return image_dataset(ImageSet("blank", ArrayImages(X), y, ArrayImages(X), y))


@pytest.mark.parametrize(("share", "n", "count"), [(0.07, 100, 7), (0.55, 100, 55), (0.5, 5, 3)])
def test_a_share_of_the_clients_is_rounded_up_and_not_beyond(share, n, count):
    method = quick("finetune", participation=share)
    assert len(method.participants(0, 0, tuple(map(str, range(n))), 0)) == count


def test_a_row_of_an_earlier_class_is_refused_where_only_new_logits_count(images, tasks):
    rounds = Rounds(quick("finetune"), images, tasks).run(1)
    message = rounds.method.broadcast(rounds.state, 1, 0)
    data = ClientData("c", "1", images.X_train[:4], np.array([2, 3, 0, 1]))
    with pytest.raises(Refused, match="labels: expected classes of this task"):
        rounds.method.client(None, message, data, 0)


def test_images_that_are_not_square_are_resized_when_asked():
    assert as_images(blank(8, 6), 8).X_train.shape == (24, 8, 8, 3)


@pytest.mark.parametrize(("height", "width", "got"), [(10, 10, "10"), (8, 12, "not square")])
def test_target_says_which_images_it_can_make(height, width, got):
    data = blank(height, width)
    with pytest.raises(ValueError, match=f"multiple of 4, these are {got}: set image_size"):
        run(Run("target", quick("target", n_rounds=1), data, make_tasks(data, n_tasks=2)))


def test_a_network_takes_images_that_are_not_square():
    data = blank(8, 12)
    method = quick("finetune", network="small", n_rounds=1)
    assert run(Run("finetune", method, data, make_tasks(data, n_tasks=2))).A_T >= 0


def test_a_number_without_dimensions_survives_a_message():
    blob = pack_tensors("k", {}, {"a": torch.tensor(3.0)})
    assert unpack_tensors("k", blob, "cpu").tensors["a"].shape == ()


@pytest.mark.parametrize("shape", [[0, 2**62], [1] * 70, [0, 2**40, 2**40]])
def test_a_shape_that_no_array_has_is_refused(shape):
    n = 0 if 0 in shape else 4
    entries = {
        "__metadata__": {"fedran": '{"kind":"k"}'},
        "a": {"dtype": "F32", "shape": shape, "data_offsets": [0, n]},
    }
    raw = json.dumps(entries).encode()
    with pytest.raises(Refused):
        unpack_tensors("k", len(raw).to_bytes(8, "little") + raw + bytes(n), "cpu")


def test_a_head_has_no_body_to_start_from_weights():
    with pytest.raises(ValueError, match="network = 'head' has none"):
        quick("finetune", weights="w.safetensors")


@pytest.mark.parametrize(
    "fields",
    [
        {"classes": 3, "known": 0},
        {"classes": ["a"], "known": 5},
        {"classes": [[1]], "known": 0},
        {"classes": ["a", "a"], "known": 0},
    ],
)
def test_a_malformed_broadcast_is_refused(fields, images, tasks):
    rounds = Rounds(quick("finetune"), images, tasks)
    sent = unpack_tensors("global-model", rounds.method.broadcast(rounds.state, 0, 0), "cpu")
    blob = pack_tensors("global-model", {"task": 0, "round": 0, **fields}, sent.tensors)
    with pytest.raises(Refused):
        rounds.method.client(None, blob, ClientData("c", "0", images.X_train[:2], ["a", "a"]), 0)


def test_room_that_a_small_class_cannot_use_goes_to_the_others():
    method = quick("fedicarl", memory_size=4, n_rounds=1, epochs=1)
    state = method.init(Spec(2, ((0, 1),), ("c",)), 0)
    X = np.random.default_rng(0).random((6, 2)).astype(np.float32)
    data, memory = ClientData("c", "0", X, np.array([0, 1, 1, 1, 1, 1])), None
    for r in range(2):
        memory, sent = method.client(memory, method.broadcast(state, 0, r), data, 0)
        state = method.aggregate(state, 0, r, {"c": sent})
    assert len(memory["exemplars"]) == 4
