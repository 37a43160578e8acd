"""Images as one array: stacked, resized, and refused where they do not fit."""

import numpy as np
import pytest

from fedran.data.dataset import Dataset
from fedran.data.digits import digits
from fedran.data.images import ImageSet
from fedran.data.pixel_arrays import ArrayImages, as_images, image_dataset, stack_pixels


def picture(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


class Album:
    """Images of any sizes; counts how often one is decoded."""

    def __init__(self, *images):
        self.images, self.decoded = images, 0

    def __len__(self):
        return len(self.images)

    def encoded(self, i):
        return self.images[i].tobytes()

    def pixels(self, i):
        self.decoded += 1
        return self.images[i]


def with_images(n=4, size=8):
    y = np.arange(n) % 2
    X = np.ones((n, 3), np.float32)
    images = ArrayImages(picture(0, n, size, size, 3)), ArrayImages(picture(1, n, size, size, 3))
    return Dataset(
        "toy",
        "features",
        X,
        y,
        X,
        y,
        images=images[0],
        test_images=images[1],
        source={"weights": "abc"},
        seconds_per_row=1.0,
    )


@pytest.mark.parametrize(("h", "w"), [(8, 8), (5, 9), (1, 1)])
def test_grey_images_are_shown_in_three_equal_channels(h, w):
    array = picture(0, 3, h, w)
    images = ArrayImages(array)
    assert len(images) == 3
    for i in range(3):
        assert images.pixels(i).shape == (h, w, 3)
        assert all(np.array_equal(images.pixels(i)[:, :, c], array[i]) for c in range(3))
        assert images.encoded(i) == array[i].tobytes()
    stacked = stack_pixels(images)
    assert stacked.shape == (3, h, w, 3)
    assert stacked.dtype == np.uint8
    np.testing.assert_array_equal(stacked, np.stack([array] * 3, axis=3))


def test_colour_images_are_shown_as_they_are():
    array = picture(0, 4, 6, 5, 3)
    images = ArrayImages(array)
    np.testing.assert_array_equal(stack_pixels(images), array)
    assert images.encoded(3) == array[3].tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 4, 4), np.float32),
        np.zeros((2, 4, 4), np.int64),
        np.zeros((4, 4), np.uint8),
        np.zeros((2, 4, 4, 1), np.uint8),
        np.zeros((2, 4, 4, 4), np.uint8),
        np.zeros((2, 4, 4, 3, 1), np.uint8),
    ],
)
def test_other_arrays_are_refused(array):
    with pytest.raises(ValueError, match=r"expected uint8 images \(n, height, width\).*got "):
        ArrayImages(array)


def test_images_of_different_sizes_need_a_common_one():
    album = Album(picture(0, 8, 8, 3), picture(1, 8, 6, 3))
    with pytest.raises(ValueError, match=r"different sizes \(8 x 8, 6 x 8\): set image_size"):
        stack_pixels(album)
    pytest.importorskip("PIL")
    assert stack_pixels(album, 8).shape == (2, 8, 8, 3)


@pytest.mark.parametrize("size", [4, 8, 16, 32])
def test_resizing_is_pillows_bicubic(size):
    Image = pytest.importorskip("PIL.Image")
    images = [picture(i, *shape, 3) for i, shape in enumerate([(8, 8), (12, 8), (8, 20), (3, 3)])]
    found = stack_pixels(Album(*images), size)
    assert found.shape == (4, size, size, 3)
    for image, square in zip(images, found, strict=True):
        by_hand = Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC)
        np.testing.assert_array_equal(square, np.asarray(by_hand))


def test_images_of_the_right_size_are_not_touched():
    images = picture(3, 5, 8, 8, 3)
    np.testing.assert_array_equal(stack_pixels(ArrayImages(images), 8), images)


def test_a_flat_image_stays_flat_when_resized():
    pytest.importorskip("PIL")
    found = stack_pixels(ArrayImages(np.full((1, 6, 10, 3), 77, np.uint8)), 12)
    assert (found == 77).all()


@pytest.mark.parametrize("size", [None, 8])
def test_no_images_at_all(size):
    found = stack_pixels(ArrayImages(np.zeros((0, 8, 8), np.uint8)), size)
    assert found.shape[0] == 0
    assert found.shape[3] == 3
    assert found.dtype == np.uint8


def test_a_dataset_as_images():
    dataset = with_images()
    found = as_images(dataset)
    assert found.kind == "images"
    np.testing.assert_array_equal(found.X_train, dataset.images.array)
    np.testing.assert_array_equal(found.X_test, dataset.test_images.array)
    np.testing.assert_array_equal(found.y_train, dataset.y_train)
    assert not found.source
    assert found.seconds_per_row is None
    assert found.hash != dataset.hash
    assert as_images(found) is found
    assert as_images(found, 8) is found
    assert dataset.kind == "features"


def test_a_dataset_as_images_of_another_size():
    pytest.importorskip("PIL")
    small = as_images(with_images(), 4)
    assert small.X_train.shape == (4, 4, 4, 3)
    assert small.X_test.shape == (4, 4, 4, 3)
    np.testing.assert_array_equal(as_images(small, 8).X_train, as_images(with_images()).X_train)


@pytest.mark.parametrize("missing", ["images", "test_images"])
def test_a_dataset_without_images_is_refused(missing):
    dataset = with_images()
    parts = {"images": dataset.images, "test_images": dataset.test_images, missing: None}
    bare = Dataset(
        "bare",
        "features",
        dataset.X_train,
        dataset.y_train,
        dataset.X_test,
        dataset.y_test,
        **parts,
    )
    with pytest.raises(ValueError, match=r"bare has no images beside its features.*'head'"):
        as_images(bare)


def test_images_without_features():
    y = np.array(["a", "b", "a"])
    train, test = picture(0, 3, 8, 8, 3), picture(1, 2, 8, 8, 3)
    images = ImageSet("album", ArrayImages(train), y, ArrayImages(test), y[:2])
    dataset = image_dataset(images)
    assert (dataset.name, dataset.kind) == ("album", "images")
    np.testing.assert_array_equal(dataset.X_train, train)
    np.testing.assert_array_equal(dataset.X_test, test)
    assert dataset.images is images.train
    assert as_images(dataset) is dataset


def test_every_image_is_decoded_a_few_times_at_most():
    album = Album(*(picture(i, 8, 8, 3) for i in range(10)))
    stack_pixels(album)
    assert album.decoded <= 11


def test_the_images_of_digits_are_their_features():
    dataset = digits()
    found = as_images(dataset)
    assert found.X_train.shape == (1262, 8, 8, 3)
    for X, images in ((dataset.X_train, found.X_train), (dataset.X_test, found.X_test)):
        grey = images[..., 0].reshape(len(X), 64).astype(float)
        assert (images == images[..., :1]).all()
        np.testing.assert_array_equal(np.rint(grey * 16 / 255), 16 * X)
        np.testing.assert_allclose(grey / 255, X, atol=0.5 / 255 + 1e-6)
