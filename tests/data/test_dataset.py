"""Datasets: matching parts, hashes, and images in place of features."""

import numpy as np
import pytest

from fedran.data.dataset import Dataset, as_images, image_dataset
from fedran.data.images import ArrayImages, ImageSet


def test_datasets_with_mismatched_parts_are_refused():
    X, y = np.zeros((3, 2)), np.array([0, 1, 1])
    with pytest.raises(ValueError, match="3 train rows but 2 labels"):
        Dataset("d", "features", X, y[:2], X, y)
    with pytest.raises(ValueError, match="without training rows"):
        Dataset("d", "features", X, y, X, y + 1)
    with pytest.raises(ValueError, match="2 groups for 3 training rows"):
        Dataset("d", "features", X, y, X, y, groups=np.array([1, 2]))


def test_the_hash_of_a_dataset_covers_rows_and_labels():
    X, y = np.zeros((3, 2)), np.array(["a", "b", "b"])
    base = Dataset("d", "features", X, y, X, y)
    assert base.hash == Dataset("other name", "features", X.copy(), y, X, y).hash
    assert base.hash != Dataset("d", "features", X + 1, y, X, y).hash
    assert base.hash != Dataset("d", "features", X, y, X, y[::-1]).hash


def picture(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


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


def test_as_images_replaces_features_by_their_images():
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


def test_as_images_resizes_from_the_original_images():
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
    with pytest.raises(ValueError, match=r"bare has features without images.*'head'"):
        as_images(bare)


def test_image_dataset_holds_the_images_as_rows():
    y = np.array(["a", "b", "a"])
    train, test = picture(0, 3, 8, 8, 3), picture(1, 2, 8, 8, 3)
    images = ImageSet("album", ArrayImages(train), y, ArrayImages(test), y[:2])
    dataset = image_dataset(images)
    assert (dataset.name, dataset.kind) == ("album", "images")
    np.testing.assert_array_equal(dataset.X_train, train)
    np.testing.assert_array_equal(dataset.X_test, test)
    assert dataset.images is images.train
    assert as_images(dataset) is dataset
