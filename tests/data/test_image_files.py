"""Folders of images and packed image files: what is read and what is refused."""

import shutil

import numpy as np
import pytest

from fedran.core.errors import Refused
from fedran.data.image_files import PackedImages, cifar100_binary, image_folder
from helpers.image_files import cifar_arrays, encode, pack, picture, write_binary, write_folder

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "pets")


def test_an_image_folder_gives_labelled_images_in_sorted_order(folder):
    (folder / "train" / "cat" / ".hidden.png").write_bytes(b"")
    (folder / "train" / ".cache").mkdir()
    (folder / "train" / "cat" / "notes.txt").write_text("not an image")
    (folder / "train" / "cat" / "more").mkdir()
    (folder / "train" / "cat" / "more" / "9.jpg").write_bytes(encode(picture(9), "JPEG"))
    images = image_folder(folder)
    assert images.name == "pets"
    assert images.y_train.tolist() == ["cat"] * 4 + ["dog"] * 3
    assert images.y_test.tolist() == ["cat", "dog"]
    np.testing.assert_array_equal(images.train.pixels(4), picture(10))
    assert images.train.encoded(4) == (folder / "train" / "dog" / "0.PNG").read_bytes()


def test_an_incomplete_image_folder_is_refused_with_what_is_missing(folder):
    shutil.rmtree(folder / "train" / "dog")
    with pytest.raises(Refused, match=r"val: expected classes that train has too.*dog"):
        image_folder(folder)
    (folder / "train" / "dog").mkdir()
    with pytest.raises(Refused, match=r"dog: expected images .*got none; remove the folder"):
        image_folder(folder)
    shutil.rmtree(folder / "val")
    with pytest.raises(Refused, match=r"expected folders train/<class>/ and test/<class>/"):
        image_folder(folder)
    (folder / "test").mkdir()
    shutil.rmtree(folder / "train" / "dog")
    with pytest.raises(Refused, match="one folder per class"):
        image_folder(folder)


def test_links_to_images_are_followed_and_other_links_refused(folder, tmp_path):
    cat = folder / "train" / "cat"
    (cat / "link.png").symlink_to(folder / "train" / "dog" / "0.PNG")
    assert len(image_folder(folder).train) == 7
    (cat / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(Refused, match=r"gone.png: expected an image file, got a link to a mis"):
        image_folder(folder)
    (cat / "gone.png").unlink()
    (cat / "loop").symlink_to(folder, target_is_directory=True)
    with pytest.raises(Refused, match="loop: expected a folder, got a link to one"):
        image_folder(folder)


def test_a_damaged_image_is_refused_with_its_file(folder):
    path = folder / "train" / "cat" / "0.PNG"
    for content in (b"", b"nonsense", path.read_bytes()[:60]):
        path.write_bytes(content)
        with pytest.raises(Refused, match=r"cat/0.PNG: expected an image that Pillow ") as refused:
            image_folder(folder).train.pixels(0)
        assert " at 0x" not in str(refused.value)


def test_images_of_8_bits_become_rgb_and_deeper_ones_are_refused(folder):
    path = folder / "train" / "cat" / "0.PNG"
    for mode in ("L", "1", "P", "RGBA", "LA", "CMYK"):
        path.unlink()
        Image.fromarray(picture(0)).convert(mode).save(path, "TIFF" if mode == "CMYK" else "PNG")
        assert image_folder(folder).train.pixels(0).shape == (8, 6, 3)
    Image.fromarray(picture(0)[:, :, 0].astype(np.uint16)).save(path, "PNG")
    with pytest.raises(Refused, match=r"8 bits per channel, got mode I;16; convert it to 8 bits"):
        image_folder(folder).train.pixels(0)


def test_images_are_rotated_as_their_exif_data_says(folder):
    path = folder / "train" / "cat" / "0.PNG"
    turned = Image.fromarray(picture(0))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(path, "PNG", exif=exif)
    np.testing.assert_array_equal(image_folder(folder).train.pixels(0), np.rot90(picture(0), k=-1))


def test_packed_files_are_read_in_order(tmp_path):
    first = pack(tmp_path / "train_0.npz", [0, 1], [0, 2])
    second = pack(tmp_path / "train_1.npz", [2], [1])
    images = PackedImages([tmp_path / "train_0.npz", tmp_path / "train_1.npz"])
    assert len(images) == 3
    assert [images.encoded(i) for i in range(3)] == first + second
    for i in range(3):
        np.testing.assert_array_equal(images.pixels(i), picture(i))
    assert images.labels.tolist() == [0, 2, 1]
    assert images.labels.dtype == np.int16  # the type of the stored features' labels
    for i in (-1, 3):
        with pytest.raises(IndexError):
            images.encoded(i)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"offsets": np.array([0, 10])}, "3 whole numbers"),
        ({"offsets": np.array([0, 200, 100])}, "increasing numbers from 0"),
        ({"offsets": np.array([-5, 10, 20])}, "increasing numbers from 0"),
        ({"offsets": np.array([0, 10, 10**9])}, "at most the"),
        ({"offsets": np.array([0.0, 10.0, 20.0])}, "whole numbers"),
        ({"blob": np.zeros(500)}, "one dimension of uint8"),
        ({"blob": None}, "without 'blob'"),
        ({"labels": None}, "without 'labels'"),
        ({"labels": np.array([0, 3], np.uint8)}, "0 to 2, the classes named, got 0 to 3"),
        ({"labels": np.array([{}, {}])}, "an array of Python objects"),
    ],
)
def test_malformed_packed_files_are_refused(tmp_path, changes, word):
    pack(tmp_path / "train.npz", [0, 1], [0, 1], **changes)
    with pytest.raises(Refused, match=word) as error:
        PackedImages([tmp_path / "train.npz"]).encoded(0)
    assert "train.npz" in str(error.value)


def test_a_file_that_is_no_npz_and_files_of_other_classes_are_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(Refused, match="packed images"):
        PackedImages([tmp_path / "a.npz"])
    pack(tmp_path / "b.npz", [0], [0])
    pack(tmp_path / "c.npz", [0], [0], classes=np.array(["x", "y", "z"]))
    with pytest.raises(Refused, match=r"classes: expected the classes of .*b.npz"):
        PackedImages([tmp_path / "b.npz", tmp_path / "c.npz"])
    with pytest.raises(ValueError, match="at least one"):
        PackedImages([])


def test_records_of_cifar_are_read_and_truncated_ones_refused(tmp_path):
    write_binary(tmp_path)
    images, (rows, fine) = cifar100_binary(tmp_path), cifar_arrays(5, 5)
    assert images.train.encoded(4) == rows[4].tobytes()
    assert images.y_train.tolist() == fine.tolist()
    np.testing.assert_array_equal(images.train.pixels(4)[:, :, 1].ravel(), rows[4][1024:2048])
    with (tmp_path / "test.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(Refused, match=r"test.bin: size: expected a multiple of 3074"):
        cifar100_binary(tmp_path)
