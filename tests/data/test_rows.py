"""Rows have a shape and labels; files that NumPy should not read are refused, not executed."""

import os
import pickle

import numpy as np
import pytest

from fedran.core.errors import Refused
from fedran.data.rows import Rows, open_arrays


class Shell:
    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("name", ["x.npz", "x.npy"])
def test_arrays_of_objects_are_refused_and_never_unpickled(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bad = np.array([Shell(), None], dtype=object)
    np.savez("x.npz", X=np.zeros(2), y=bad)
    np.save("x.npy", bad, allow_pickle=True)
    with (
        pytest.raises(Refused, match=r"got an array of Python objects \((y|x.npy)\)"),
        open_arrays(tmp_path / name, "rows") as file,
    ):
        file["y"]
    assert not (tmp_path / "executed").exists()


def test_a_size_beyond_the_memory_is_refused(tmp_path):
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**10, 10**7)}
        np.lib.format.write_array_header_1_0(file, header)
    with (
        pytest.raises(Refused, match="a size that does not fit into memory"),
        open_arrays(path, "x"),
    ):
        pass


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nothing", pickle.dumps(Shell())])
def test_other_files_are_refused(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(Refused, match="expected rows, got a damaged"), open_arrays(path, "rows"):
        pass
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (np.zeros((2, 3, 4)), [0, 1], "rows: expected features"),
        (np.zeros((2, 4, 4, 3)), [0, 1], "rows: expected features"),
        (np.zeros((2, 3)), [0], "labels: expected 2, one per row"),
    ],
)
def test_rows_of_a_wrong_shape_or_with_too_few_labels_are_refused(X, y, words):
    with pytest.raises(Refused, match=words):
        Rows(X, y)
