"""CIFAR-100 in its two published layouts, and pickles that are refused."""

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from fedran.core.errors import Refused
from fedran.data.cifar import PIXELS, cifar100_binary, cifar100_python
from helpers.image_files import cifar_arrays, write_binary, write_python


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_both_layouts_of_cifar_give_the_same_images(tmp_path, protocol):
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
            "1, one per image, got 2",
        ),
        (
            pickle.dumps({"data": np.zeros((1, PIXELS), np.uint8), "fine_labels": [100]}),
            "labels: expected 0 to 99",
        ),
        (b"cnumpy\nndarray\n}b.", "a pickle of plain data"),
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR.", "latin1, got rot13"),
    ],
)
def test_pickles_with_unexpected_content_are_refused(tmp_path, content, word):
    write_python(tmp_path / "c")
    (tmp_path / "c" / "train").write_bytes(content)
    with pytest.raises(Refused, match=word):
        cifar100_python(tmp_path / "c")


def test_truncated_cifar_records_are_refused(tmp_path):
    write_binary(tmp_path / "b")
    with (tmp_path / "b" / "test.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(Refused, match=r"test.bin: size: expected a multiple of 3074"):
        cifar100_binary(tmp_path / "b")
