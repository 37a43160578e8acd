"""Rows of a site from files and from functions."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.federation.site.source import FolderSource, FunctionSource, backbone_loader
from helpers.federation.made_site import rows


def test_rows_are_read_from_the_file_of_a_task(tmp_path):
    X, y = rows(12)
    labels = np.array([*map(str, y[:10]), "", ""])
    np.savez(tmp_path / "may.npz", features=X, labels=labels)
    data = FolderSource(tmp_path)("may")
    assert np.array_equal(data.X, X)
    assert data.y == [*map(str, y[:10]), None, None]
    with pytest.raises(FileNotFoundError, match="no rows for task july yet"):
        FolderSource(tmp_path)("july")
    np.savez(tmp_path / "june.npz", X=X, y=labels)
    assert FolderSource(tmp_path)("june").y == data.y
    np.savez(tmp_path / "bad.npz", rows=X)
    (tmp_path / "worse.npz").write_bytes(b"nonsense")
    np.savez(tmp_path / "pickled.npz", features=X, labels=np.array([{}] * 12, dtype=object))
    whole = (tmp_path / "may.npz").read_bytes()
    (tmp_path / "torn.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "rotten.npz").write_bytes(whole[:100] + b"!!!!" + whole[104:])
    for name in ("bad", "worse", "pickled", "torn", "rotten"):
        with pytest.raises(Refused, match=f"^{name}.npz: expected"):
            FolderSource(tmp_path)(name)


def test_a_disk_that_ignores_case_does_not_give_the_same_rows_to_two_tasks(tmp_path, monkeypatch):
    X, y = rows(12)
    np.savez(tmp_path / "may.npz", features=X, labels=y)
    same = {(tmp_path / "may.npz"), (tmp_path / "May.npz")}
    monkeypatch.setattr(Path, "is_file", lambda path: path in same)
    assert len(FolderSource(tmp_path)("may").y) == 12
    with pytest.raises(FileNotFoundError, match="no rows for task May yet"):
        FolderSource(tmp_path)("May")


def test_rows_are_read_from_a_csv_file(tmp_path):
    text = "a,label,b\n0.5,3,1\n\n-2,,4e1\n1,-7,0\n"
    (tmp_path / "may.csv").write_text(text, encoding="utf-8-sig")
    data = FolderSource(tmp_path)("may")
    assert np.array_equal(data.X, [[0.5, 1], [-2, 40], [1, 0]])
    assert (data.X.dtype, data.y) == (np.float32, [3, None, -7])
    (tmp_path / "july.csv").write_text("0.5,7,1\n1,8,2\n")  # no header: columns 0, 1 and 2
    data = FolderSource(tmp_path, "1")("july")
    assert (data.X.tolist(), data.y) == ([[0.5, 1], [1, 2]], [7, 8])
    for labels, expected in (
        ("01 2", ["01", "2"]),
        ("cat 2", ["cat", "2"]),
        ("0 10", [0, 10]),
        ("0.0 -3.00 10", [0, -3, 10]),  # as pandas writes integers where some are missing
        ("1.0 2.5", ["1.0", "2.5"]),
    ):
        rows = [f"1,{label}" for label in labels.split()]
        (tmp_path / "june.csv").write_text("\n".join(["x, label", *rows]))
        assert FolderSource(tmp_path)("june").y == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "an empty file"),
        ("a,b\n1,2\n", 'label_column = "COLUMN"'),
        ("a;b;label\n1,5;2;x\n", "semicolons"),
        ("a\tlabel\n1\tx\n", "tabs"),
        ("1,2,3\n", "got the columns 0, 1, 2"),
        ("a,b,diagnosis,c\n1,,benign,nan\n", 'label_column = "diagnosis"'),
        ("label,a,label\n1,2,3\n", "one column label"),
        ("63,1,secret\n5,6,b\n", "a first line like those of rows"),
        ("label\n1\n", "at least one column of features"),
        ("a,label\n1,2,3\n", "line 2: expected 2 columns, got 3"),
        ("a,label\n1,2\n\nsecret,2\n", "line 4: expected numbers in column a, got text"),
        ("a,label\n,2\n", "line 2: expected numbers in column a, got an empty value"),
    ],
)
def test_a_wrong_csv_file_is_named_with_its_line(text, words, tmp_path):
    (tmp_path / "may.csv").write_text(text)
    with pytest.raises(Refused, match=words) as caught:
        FolderSource(tmp_path)("may")
    assert "secret" not in str(caught.value)


def test_rows_are_read_from_a_parquet_file(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = arrow.table({"a": [1.0, 2.0], "diagnosis": ["x", None], "b": [3, 4]})
    parquet.write_table(table, tmp_path / "may.parquet")
    data = FolderSource(tmp_path, "diagnosis")("may")
    assert (data.X.tolist(), data.y) == ([[1, 3], [2, 4]], ["x", None])
    with pytest.raises(Refused, match='label_column = "diagnosis"'):
        FolderSource(tmp_path)("may")
    for values in (["secret", "x"], [[1], [2]], arrow.array([0, 1], arrow.timestamp("s"))):
        table = arrow.table({"a": values, "label": [1, 2]})
        parquet.write_table(table, tmp_path / "may.parquet")
        with pytest.raises(Refused, match="numbers in column a") as caught:
            FolderSource(tmp_path)("may")
        assert "secret" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="parquet"):
        FolderSource(tmp_path)("may")


def test_two_files_for_one_task_are_refused(tmp_path):
    np.savez(tmp_path / "may.npz", features=np.zeros((1, 2)), labels=[1])
    (tmp_path / "may.csv").write_text("")
    with pytest.raises(Refused, match=r"one file for task may, got may.npz, may.csv"):
        FolderSource(tmp_path)("may")


@pytest.mark.parametrize("task", ["../secret", "a/b", "", "/etc/passwd", "a\0b"])
def test_the_name_of_a_task_cannot_point_outside_the_folder(task, tmp_path):
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "secret.npz", features=np.zeros((1, 2)), labels=[1])
    with pytest.raises(Refused, match="task: expected"):
        FolderSource(tmp_path / "data")(task)


def test_rows_come_from_a_function_named_in_the_configuration(tmp_path, monkeypatch):
    (tmp_path / "my_rows.py").write_text(
        "def load(task):\n    return [[1.0]] * 4, [task, None, float('nan'), '']\n\n\nnumber = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = FunctionSource("my_rows:load")("may")
    assert (data.X.shape, data.y) == ((4, 1), ["may", None, None, None])
    for wrong in ("my_rows", ":load", "my_rows:none", "no_such_module:f", "my_rows:number"):
        with pytest.raises(Refused, match="entry: expected"):
            FunctionSource(wrong)
    sys.modules.pop("my_rows", None)


def test_the_text_of_an_exception_in_a_function_stays_at_the_site(tmp_path, monkeypatch, caplog):
    (tmp_path / "rows_that_fail.py").write_text(
        "import sys\n\n\ndef load(task):\n"
        "    if task == 'none':\n        raise FileNotFoundError('/srv/secret')\n"
        "    sys.exit('secret') if task == 'exit' else 1 / 0\n"
    )
    (tmp_path / "rows_that_end.py").write_text("raise RuntimeError('secret')")
    monkeypatch.syspath_prepend(tmp_path)
    source = FunctionSource("rows_that_fail:load")
    with pytest.raises(FileNotFoundError, match=r"^no rows for task none yet"):
        source("none")
    for task, kind in (("exit", "SystemExit"), ("may", "ZeroDivisionError")):
        with pytest.raises(Refused, match=f"expected rows and labels, got {kind}; the site's log"):
            source(task)
    with pytest.raises(Refused, match="can be imported, got RuntimeError"):
        FunctionSource("rows_that_end:load")
    assert "division by zero" in caplog.text
    sys.modules.pop("rows_that_fail", None)


def test_a_backbone_is_loaded_from_the_sites_folder_or_by_name(tmp_path, monkeypatch):
    from fedran.backbones import catalogue

    seen = []
    monkeypatch.setattr(catalogue, "load_backbone", seen.append)
    (tmp_path / "model").mkdir()
    for spec in ("efficientnet-lite0", "hf:google/vit", "vit:model", f"onnx:{os.devnull}"):
        backbone_loader(spec, tmp_path)()
    expected = [f"vit:{tmp_path / 'model'}", f"onnx:{os.devnull}"]
    assert seen == ["efficientnet-lite0", "hf:google/vit", *expected]
