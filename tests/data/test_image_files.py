"""Folders of images and packed image files: what is read and what is refused."""

import shutil
import struct
import zlib

import numpy as np
import pytest

from fedran.core.errors import Refused
from fedran.data.image_files import PackedImages, cifar100_binary, image_folder
from fedran.data.images import decode_image
from helpers.image_files import (
    cifar_arrays,
    dicom,
    encode,
    pack,
    picture,
    write_binary,
    write_folder,
)

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "pets")


def test_an_image_folder_gives_labelled_images_in_sorted_order(folder):
    (folder / "train" / "cat" / ".hidden.png").write_bytes(b"")
    (folder / "train" / ".cache").mkdir()
    (folder / "train" / "cat" / "more").mkdir()
    (folder / "train" / "cat" / "more" / "9.jpg").write_bytes(encode(picture(9), "JPEG"))
    images = image_folder(folder)
    assert images.name == "pets"
    assert images.y_train.tolist() == ["cat"] * 4 + ["dog"] * 3
    assert images.y_test.tolist() == ["cat", "dog"]
    assert images.train.names[3:5] == ["cat/more/9.jpg", "dog/0.PNG"]
    np.testing.assert_array_equal(images.train.pixels(4), picture(10))
    assert images.train.encoded(4) == (folder / "train" / "dog" / "0.PNG").read_bytes()


@pytest.mark.parametrize(
    ("layout", "train", "test"),
    [
        ("train/cat/a train/dog/a test/bird/a", ["cat", "dog"], ["bird"]),
        ("train/cat/a train/dog/a", ["cat", "dog"], []),
        ("cat/a dog/more/b c", ["", "cat", "dog"], []),
        ("a b", ["", ""], []),
        ("train/a train/cat/b val/c", ["", "cat"], [""]),
        (
            "train/a test/cat/a plane/a",
            [
                "",
            ],
            ["cat"],
        ),
        ("train/a plane/a", ["plane", "train"], []),
    ],
)
def test_any_layout_is_read_and_images_without_a_folder_have_no_label(
    tmp_path, layout, train, test
):
    for name in layout.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.png").write_bytes(encode(picture(len(name))))
    images = image_folder(tmp_path)
    assert sorted(images.y_train.tolist()) == train
    assert images.y_test.tolist() == test
    assert ("folder plane" in images.skipped) == ("plane" in layout and "test" in layout)


def test_what_is_no_image_is_counted_by_its_kind(folder, tmp_path):
    cat = folder / "train" / "cat"
    (cat / "link.png").symlink_to(folder / "train" / "dog" / "0.PNG")
    (cat / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (cat / "loop").symlink_to(folder, target_is_directory=True)
    for name in ("notes.txt", "more.TXT", "README", "scan.mhd"):
        (cat / name).write_text("not an image")
    images = image_folder(folder)
    assert len(images.train) == 7
    assert images.skipped == {
        "link to a missing file": 1,
        "link to a folder": 1,
        ".txt": 2,
        ".mhd": 1,
        "file without a suffix": 1,
    }
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "notes.txt").write_text("not an image")
    with pytest.raises(Refused, match=r"pets: expected images .*, got 1 x .txt"):
        image_folder(folder)


def test_a_damaged_image_is_refused_with_its_file(folder):
    path = folder / "train" / "cat" / "0.PNG"
    for content in (b"", b"nonsense", path.read_bytes()[:60]):
        path.write_bytes(content)
        with pytest.raises(Refused, match=r"cat/0.PNG: expected an image that Pillow ") as refused:
            image_folder(folder).train.pixels(0)
        assert " at 0x" not in str(refused.value)


def test_images_of_8_bits_become_rgb(folder):
    path = folder / "train" / "cat" / "0.PNG"
    for mode in ("L", "1", "P", "RGBA", "LA", "CMYK"):
        path.unlink()
        Image.fromarray(picture(0)).convert(mode).save(path, "TIFF" if mode == "CMYK" else "PNG")
        assert image_folder(folder).train.pixels(0).shape == (8, 6, 3)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("PNG", np.uint16), ("TIFF", np.uint16), ("TIFF", "f4")]
)
def test_deep_images_are_scaled_by_the_stated_range(kind, dtype):
    values = np.arange(48, dtype=dtype).reshape(8, 6) * 100
    deep = encode(values, kind)
    found = decode_image(deep, "a", (1000, 3000))
    expected = np.rint(255 * np.clip((values.astype(float) - 1000) / 2000, 0, 1))
    np.testing.assert_array_equal(found, np.repeat(expected[:, :, None], 3, axis=2))
    with pytest.raises(
        Refused, match=r"a: expected 8 bits .*, got values from 0 to 4700; .*--range"
    ):
        decode_image(deep, "a")


def test_colours_of_16_bits_are_refused():
    """Pillow keeps only their higher byte."""
    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    body = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(7))), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(x)) + name + x + struct.pack(">I", zlib.crc32(name + x))
        for name, x in body
    )
    with pytest.raises(Refused, match="8 bits per colour, got 16"):
        decode_image(data, "a", (0, 65535))


WINDOW = {"WindowCenter": "1000", "WindowWidth": "501"}


@pytest.mark.parametrize(
    ("fields", "values", "black", "white"),
    [
        (WINDOW, None, 749.5, 1249.5),
        ({**WINDOW, "RescaleSlope": "2", "RescaleIntercept": "-1024"}, None, 886.75, 1136.75),
        ({**WINDOW, "RescaleSlope": "1", "RescaleIntercept": "-1024"}, (0, 100), 1024, 1124),
        ({"PhotometricInterpretation": "MONOCHROME1"}, (1000, 2000), 2000, 1000),
    ],
)
def test_dicom_files_are_scaled_by_their_window_or_by_the_stated_range(
    fields, values, black, white
):
    stored = np.arange(1600, dtype=np.uint16).reshape(40, 40)
    found = decode_image(dicom(stored, **fields), "a", values)
    expected = 255 * np.clip((stored.astype(float) - black) / (white - black), 0, 1)
    assert found.shape == (40, 40, 3)
    assert np.abs(found[:, :, 1] - expected).max() <= 0.51


def test_dicom_files_are_found_by_their_content_and_need_a_window(folder):
    (folder / "train" / "dog" / "IM0001").write_bytes(dicom(np.ones((4, 4), np.uint16), **WINDOW))
    assert len(image_folder(folder).train) == 7
    with pytest.raises(Refused, match=r"a window in the file, or a range of values, got no window"):
        decode_image(dicom(np.ones((4, 4), np.uint16)), "a")
    with pytest.raises(Refused, match="one grey or 8-bit colour image, got shape"):
        decode_image(dicom(np.ones((2, 4, 4), np.uint16), NumberOfFrames=2), "a")


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
        ({"offsets": np.array([0, 10, 10**9])}, "at least 1000000000 bytes"),
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
    assert images.y_train.tolist() == fine.tolist()
    np.testing.assert_array_equal(images.train.pixels(4)[:, :, 1].ravel(), rows[4][1024:2048])
    assert images.train.encoded(4) == images.train.pixels(4).tobytes()
    with (tmp_path / "test.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(Refused, match=r"test.bin: size: expected a multiple of 3074"):
        cifar100_binary(tmp_path)
