"""Image datasets on disk: layouts, labels, and what is refused."""

import io
import os
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from fedran.core.errors import Refused
from fedran.data.cifar import PIXELS, cifar100_binary, cifar100_python
from fedran.data.image_folder import image_folder
from fedran.data.image_sets import load_images
from fedran.data.packed import packed_features
from fedran.data.packed_images import PackedImages

Image = pytest.importorskip("PIL.Image")


def picture(seed, size=(8, 6)):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def encode(pixels, kind="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def pack(path, seeds, numbers, **changes):
    blobs = [encode(picture(s), "WEBP", lossless=True) for s in seeds]
    arrays = {
        "blob": np.frombuffer(b"".join(blobs), np.uint8),
        "offsets": np.cumsum([0, *map(len, blobs)]),
        "labels": np.array(numbers, np.uint8),
        "classes": np.array(["ant", "bee", "cat"]),
    }
    np.savez(path, **{k: v for k, v in {**arrays, **changes}.items() if v is not None})
    return blobs


def test_packed_files_follow_each_other(tmp_path):
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
        ({"offsets": np.array([0, 200, 100])}, "an ascent from 0"),
        ({"offsets": np.array([-5, 10, 20])}, "an ascent from 0"),
        ({"offsets": np.array([0, 10, 10**9])}, "at most the"),
        ({"offsets": np.array([0.0, 10.0, 20.0])}, "whole numbers"),
        ({"blob": np.zeros(500)}, "a row of uint8"),
        ({"blob": None}, "without 'blob'"),
        ({"labels": None}, "without 'labels'"),
        ({"labels": np.array([0, 3], np.uint8)}, "0 to 2, the classes named, got 0 to 3"),
        ({"labels": np.array([{}, {}])}, "allow_pickle=False"),
    ],
)
def test_wrong_packed_files_are_refused(tmp_path, changes, word):
    pack(tmp_path / "train.npz", [0, 1], [0, 1], **changes)
    with pytest.raises(Refused, match=word) as error:
        PackedImages([tmp_path / "train.npz"])
    assert "train.npz" in str(error.value)


def test_a_file_that_is_no_npz_and_files_of_other_classes_are_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(Refused, match="packed images"):
        PackedImages([tmp_path / "a.npz"])
    pack(tmp_path / "b.npz", [0], [0])
    pack(tmp_path / "c.npz", [0], [0], classes=np.array(["x", "y", "z"]))
    with pytest.raises(Refused, match=r"classes: expected those of .*b.npz"):
        PackedImages([tmp_path / "b.npz", tmp_path / "c.npz"])
    with pytest.raises(ValueError, match="at least one"):
        PackedImages([])


def cifar_arrays(n, seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 256, (n, PIXELS), dtype=np.uint8)
    return rows, rng.integers(0, 100, n)


def write_binary(folder):
    folder.mkdir(parents=True)
    for part, n in (("train", 5), ("test", 3)):
        rows, fine = cifar_arrays(n, n)
        records = np.column_stack([np.zeros(n), fine, rows]).astype(np.uint8)
        (folder / f"{part}.bin").write_bytes(records.tobytes())


def write_python(folder, protocol=2):
    folder.mkdir(parents=True)
    for part, n in (("train", 5), ("test", 3)):
        rows, fine = cifar_arrays(n, n)
        content = {b"data": rows, b"fine_labels": fine.tolist(), b"filenames": [b"a.png"] * n}
        (folder / part).write_bytes(pickle.dumps(content, protocol))


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_both_layouts_of_cifar_hold_the_same(tmp_path, protocol):
    write_binary(tmp_path / "b")
    write_python(tmp_path / "p", protocol)
    a, b = cifar100_binary(tmp_path / "b"), cifar100_python(tmp_path / "p")
    for part in ("train", "test"):
        np.testing.assert_array_equal(getattr(a, f"y_{part}"), getattr(b, f"y_{part}"))
        for i in range(3):
            assert getattr(a, part).encoded(i) == getattr(b, part).encoded(i)
    rows, _ = cifar_arrays(5, 5)
    assert a.train.encoded(4) == rows[4].tobytes()
    np.testing.assert_array_equal(a.train.pixels(4)[:, :, 1].ravel(), rows[4][1024:2048])


def test_pickles_of_python_2_are_read(tmp_path):
    """The official files come from Python 2: byte strings and numpy.core names."""
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for part in ("train", "test"):
        rows, fine = cifar_arrays(2, 0)
        short = b"".join(b"K" + bytes([int(v)]) for v in fine)
        (folder / part).write_bytes(
            b"\x80\x02}("
            b"U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
            b"(K\x01K\x02M" + struct.pack("<H", PIXELS) + b"\x86"
            b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
            b"T" + struct.pack("<i", rows.nbytes) + rows.tobytes() + b"tb"
            b"U\x0bfine_labels](" + short + b"eu."
        )
    images = cifar100_python(folder)
    assert images.train.encoded(1) == cifar_arrays(2, 0)[0][1].tobytes()
    assert images.y_train.tolist() == cifar_arrays(2, 0)[1].tolist()


class Hostile:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize(
    "content",
    [
        Hostile(os.mkdir, "ran"),
        Hostile(eval, "__import__('os').mkdir('ran')"),
        {"data": Hostile(os.system, "mkdir ran")},
        {"data": np.array([Hostile(os.mkdir, "ran")], dtype=object)},
        Hostile(getattr, "a", "__class__"),
    ],
)
def test_hostile_pickles_are_refused_and_not_run(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    write_python(tmp_path / "c")
    (tmp_path / "c" / "train").write_bytes(pickle.dumps(content))
    with pytest.raises(Refused, match="train"):
        cifar100_python(tmp_path / "c")
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"not a pickle", "a pickle of plain data"),
        (pickle.dumps([1]), "a pickled dict, got list"),
        (pickle.dumps({"data": [1], "fine_labels": [1]}), "uint8 rows of 3072 pixels, got list"),
        (pickle.dumps({"data": np.zeros((2, 5), np.uint8)}), "3072 pixels"),
        (pickle.dumps({"data": np.zeros((2, PIXELS))}), "array: expected uint8, got f8"),
        (pickle.dumps({"data": np.zeros((1, PIXELS), np.uint8)}), "a list of whole numbers"),
        (
            pickle.dumps({"data": np.zeros((1, PIXELS), np.uint8), "fine_labels": [1, 2]}),
            "1, one for each image, got 2",
        ),
        (
            pickle.dumps({"data": np.zeros((1, PIXELS), np.uint8), "fine_labels": [100]}),
            "labels: expected 0 to 99",
        ),
        (b"cnumpy\nndarray\n}b.", "a pickle of plain data"),
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR.", "latin1, got rot13"),
    ],
)
def test_other_pickles_are_refused(tmp_path, content, word):
    write_python(tmp_path / "c")
    (tmp_path / "c" / "train").write_bytes(content)
    with pytest.raises(Refused, match=word):
        cifar100_python(tmp_path / "c")


def test_cut_records_are_refused(tmp_path):
    write_binary(tmp_path / "b")
    with (tmp_path / "b" / "test.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(Refused, match=r"test.bin: size: expected a multiple of 3074"):
        cifar100_binary(tmp_path / "b")


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "pets"
    for part, n in (("train", 3), ("val", 1)):
        for k, name in enumerate(("cat", "dog")):
            (root / part / name).mkdir(parents=True)
            for i in range(n):
                (root / part / name / f"{i}.PNG").write_bytes(encode(picture(10 * k + i)))
    return root


def test_an_image_folder(folder):
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


def test_what_an_image_folder_lacks_is_named(folder):
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
    with pytest.raises(Refused, match="one folder for each class"):
        image_folder(folder)


def test_links_are_followed_where_that_is_safe(folder, tmp_path):
    cat = folder / "train" / "cat"
    (cat / "link.png").symlink_to(folder / "train" / "dog" / "0.PNG")
    assert len(image_folder(folder).train) == 7
    (cat / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(Refused, match=r"gone.png: expected an image file, got a link that leads"):
        image_folder(folder)
    (cat / "gone.png").unlink()
    (cat / "loop").symlink_to(folder, target_is_directory=True)
    with pytest.raises(Refused, match="loop: expected a folder, got a link to one"):
        image_folder(folder)


def test_a_damaged_image_names_its_file(folder):
    path = folder / "train" / "cat" / "0.PNG"
    for content in (b"", b"nonsense", path.read_bytes()[:60]):
        path.write_bytes(content)
        with pytest.raises(Refused, match=r"cat/0.PNG: expected an image that Pillow can read"):
            image_folder(folder).train.pixels(0)


def test_modes_of_images(folder):
    path = folder / "train" / "cat" / "0.PNG"
    for mode in ("L", "1", "P", "RGBA", "LA", "CMYK"):
        path.unlink()
        Image.fromarray(picture(0)).convert(mode).save(path, "TIFF" if mode == "CMYK" else "PNG")
        assert image_folder(folder).train.pixels(0).shape == (8, 6, 3)
    Image.fromarray(picture(0)[:, :, 0].astype(np.uint16)).save(path, "PNG")
    with pytest.raises(Refused, match=r"8 bits a channel, got mode I;16; convert it to 8 bits"):
        image_folder(folder).train.pixels(0)


def test_images_stand_upright(folder):
    path = folder / "train" / "cat" / "0.PNG"
    turned = Image.fromarray(picture(0))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(path, "PNG", exif=exif)
    np.testing.assert_array_equal(image_folder(folder).train.pixels(0), np.rot90(picture(0), k=-1))


def test_load_images_looks_what_a_folder_holds(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("FEDRAN_DATA", raising=False)
    write_binary(tmp_path / "x" / "cifar-100-binary")
    write_python(tmp_path / "y")
    (tmp_path / "z").mkdir()
    for k in range(11):
        pack(tmp_path / "z" / f"train_{k}.npz", [k], [0])
    pack(tmp_path / "z" / "test.npz", [0], [1])
    assert load_images(folder).name == "pets"
    assert len(load_images(tmp_path / "x").train) == 5
    assert len(load_images(tmp_path / "y").train) == 5
    packed = load_images(str(tmp_path / "z"))
    np.testing.assert_array_equal(packed.train.pixels(10), picture(10))
    with pytest.raises(Refused, match="expected folders train"):
        load_images(tmp_path)
    with pytest.raises(ValueError, match="the folder that holds the images, got a file"):
        load_images(tmp_path / "z" / "test.npz")


@pytest.mark.parametrize("place", ["data/cifar-100-binary", "cifar-100-binary"])
def test_a_known_name_is_found_below_the_data_folder(tmp_path, monkeypatch, place):
    monkeypatch.setenv("FEDRAN_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"holds none of them; download 'CIFAR-100 binary"):
        load_images("cifar100")
    write_binary(tmp_path / place)
    assert len(load_images("cifar100").test) == 3


def test_unknown_names_get_a_suggestion(monkeypatch):
    monkeypatch.delenv("FEDRAN_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="did you mean 'cifar100'"):
        load_images("CIFAR-100")
    with pytest.raises(FileNotFoundError, match=r"FEDRAN_DATA is not set; .*toronto.edu"):
        load_images("cifar100")


@pytest.mark.skipif("FEDRAN_DATA" not in os.environ, reason="needs the data below FEDRAN_DATA")
def test_stored_images_and_stored_features_have_the_same_labels():
    images = load_images("cifar100")
    stored = Path(os.environ["FEDRAN_DATA"]) / "features" / "cifar100-efficientnet_lite0.npz"
    features = packed_features(stored)
    np.testing.assert_array_equal(images.y_train, features.y_train)
    np.testing.assert_array_equal(images.y_test, features.y_test)
    assert images.train.pixels(len(images.train) - 1).shape == (32, 32, 3)
