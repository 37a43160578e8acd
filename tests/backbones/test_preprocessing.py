"""Preprocessing against Pillow."""

import numpy as np
import pytest

from fedran.backbones.preprocessing import Preprocessing, imagenet

Image = pytest.importorskip("PIL.Image")
PLAIN = {"mean": (0, 0, 0), "std": (1, 1, 1)}


def picture(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("filter_name", ["bicubic", "bilinear"])
def test_resizing_equals_pillows(filter_name):
    x = picture(20, 30)
    p = Preprocessing((16, 24), interpolation=filter_name, **PLAIN)
    how = getattr(Image.Resampling, filter_name.upper())
    expected = np.asarray(Image.fromarray(x).resize((24, 16), how))
    np.testing.assert_array_equal(p(x), expected.transpose(2, 0, 1))


def test_unrounded_pixels_differ_by_rounding_alone():
    x = 100 + picture(8, 8) // 8  # nothing to clip
    exact = Preprocessing((32, 32), rounded=False, **PLAIN)(x)
    rounded = Preprocessing((32, 32), **PLAIN)(x)
    assert exact.min() >= 0
    assert exact.max() <= 255
    # Twice: Pillow rounds after the columns and again after the rows.
    assert 0.1 < np.abs(exact - rounded).max() < 1.5


@pytest.mark.parametrize(("height", "width"), [(40, 80), (80, 40), (40, 40)])
def test_resizing_the_shorter_side_and_cropping_the_centre(height, width):
    x = np.zeros((height, width, 3), np.uint8)
    x[height // 2 - 10 : height // 2 + 10, width // 2 - 10 : width // 2 + 10] = 255
    y = Preprocessing(20, crop=(10, 10), **PLAIN)(x)
    assert y.shape == (3, 10, 10)
    assert y.min() > 200


def test_mean_and_std_of_pixels_in_0_to_255_are_refused():
    with pytest.raises(ValueError, match=r"got \(0.5, .*\(58, 57, 57\); divide .* by 255"):
        imagenet(4, std=(58, 57, 57), mean=(0.5, 0.5, 0.5))
    with pytest.raises(ValueError, match="from 0 to 1 each"):
        imagenet(4, mean=(127, 127, 127), std=(1, 1, 1))


def test_normalisation_and_the_text_form():
    x = np.full((4, 4, 3), 255, np.uint8)
    p = imagenet(4)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(p(x)[:, 0, 0], (1 - mean) / std, rtol=1e-6)
    assert str(p) == "bicubic 4x4, (x - [123.675 116.28 103.53]) / [58.395 57.12 57.375]"
    assert len(str(p)) <= 256  # what a fingerprint's field may hold
    texts = {
        str(Preprocessing((4, 4), **PLAIN)),
        str(Preprocessing((4, 4), **PLAIN, rounded=False)),
        str(Preprocessing((4, 4), **PLAIN, interpolation="bilinear")),
        str(Preprocessing(4, **PLAIN, crop=(4, 4))),
        str(Preprocessing((4, 4), **PLAIN, crop=(3, 3))),
    }
    assert len(texts) == 5


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"resize": 8}, "needs a crop"),
        ({"resize": 8, "crop": (9, 8)}, "does not fit"),
        ({"resize": (8, 8), "crop": (0, 8)}, "does not fit"),
        ({"resize": (8, 8), "std": (1, 0, 1)}, "positive stds"),
        ({"resize": (8, 8), "interpolation": "nearest"}, "bicubic or bilinear"),
    ],
)
def test_impossible_preprocessing_is_refused(options, word):
    with pytest.raises(ValueError, match=word):
        Preprocessing(**{**PLAIN, **options})


@pytest.mark.parametrize("x", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3))])
def test_pixels_of_another_shape_or_type_are_refused(x):
    with pytest.raises(ValueError, match="expected uint8 pixels"):
        imagenet(4)(x)
