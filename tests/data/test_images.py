"""Images of one size as one array: stacked, resized, and refused where they do not match."""

import numpy as np
import pytest

from fedran.data.images import ArrayImages, stack_images


def picture(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


class Album:
    """Images of any sizes."""

    def __init__(self, *images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def encoded(self, i):
        return self.images[i].tobytes()

    def pixels(self, i):
        return self.images[i]


@pytest.mark.parametrize(("h", "w"), [(8, 8), (5, 9), (1, 1)])
def test_grey_images_get_three_equal_channels(h, w):
    array = picture(0, 3, h, w)
    images = ArrayImages(array)
    assert len(images) == 3
    for i in range(3):
        assert images.pixels(i).shape == (h, w, 3)
        assert all(np.array_equal(images.pixels(i)[:, :, c], array[i]) for c in range(3))
        assert images.encoded(i) == array[i].tobytes()
    stacked = stack_images(images)
    assert stacked.shape == (3, h, w, 3)
    assert stacked.dtype == np.uint8
    np.testing.assert_array_equal(stacked, np.stack([array] * 3, axis=3))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 4, 4), np.float32),
        np.zeros((4, 4), np.uint8),
        np.zeros((2, 4, 4, 1), np.uint8),
        np.zeros((2, 4, 4, 3, 1), np.uint8),
    ],
)
def test_arrays_that_are_not_images_are_refused(array):
    with pytest.raises(ValueError, match=r"expected uint8 images \(n, height, width\).*got "):
        ArrayImages(array)


def test_images_of_different_sizes_need_a_common_one():
    album = Album(picture(0, 8, 8, 3), picture(1, 8, 6, 3))
    with pytest.raises(ValueError, match=r"different sizes \(8 x 8, 6 x 8\): set image_size"):
        stack_images(album)
    pytest.importorskip("PIL")
    assert stack_images(album, 8).shape == (2, 8, 8, 3)


@pytest.mark.parametrize("size", [4, 8, 16, 32])
def test_resizing_is_pillows_bicubic(size):
    Image = pytest.importorskip("PIL.Image")
    images = [picture(i, *shape, 3) for i, shape in enumerate([(8, 8), (12, 8), (8, 20), (3, 3)])]
    found = stack_images(Album(*images), size)
    assert found.shape == (4, size, size, 3)
    for image, square in zip(images, found, strict=True):
        by_hand = Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC)
        np.testing.assert_array_equal(square, np.asarray(by_hand))


@pytest.mark.parametrize("size", [None, 8])
def test_stacking_no_images_gives_an_empty_array(size):
    found = stack_images(ArrayImages(np.zeros((0, 8, 8), np.uint8)), size)
    assert found.shape[0] == 0
    assert found.shape[3] == 3
    assert found.dtype == np.uint8
