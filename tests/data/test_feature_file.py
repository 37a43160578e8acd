"""Feature files: what is read, and which files are refused."""

import gc
import warnings

import numpy as np
import pytest

from fedran.core.errors import Refused
from fedran.data.catalogue import load_dataset
from fedran.data.feature_file import read_feature_file

LABELS = {"train_labels": [0, 1], "test_labels": [1, 0]}
ROWS = np.array([[0.0, 1.0], [2.0, 3.0]])


def write(path, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{"train": ROWS, "test": ROWS, **LABELS, **arrays})
    return path


def test_feature_files_hold_numbers_or_8_bit_codes(tmp_path):
    codes = np.array([[0, 255], [128, 64]], dtype=np.uint8)
    scale = np.array([2.0, 3.0], dtype=np.float32)
    np.savez(tmp_path / "a.npz", train_codes=codes, test_codes=codes, scale=scale, **LABELS)
    expected = (codes / 255.0 * scale) ** 2
    assert np.allclose(read_feature_file(tmp_path / "a.npz").X_train, expected, rtol=1e-6)
    np.savez(tmp_path / "b.npz", train=expected, test=expected.astype(np.float16), **LABELS)
    assert read_feature_file(tmp_path / "b.npz").X_test.dtype == np.float32


def test_optional_fields_of_a_feature_file_are_read(tmp_path):
    path = write(
        tmp_path / "x.npz",
        train_groups=["ann", "bob"],
        backbone="net",
        weights="abc123",
        preprocessing="resize 224",
        seconds_per_row=0.25,
    )
    d = read_feature_file(path)
    assert d.name == "x"
    assert d.groups.tolist() == ["ann", "bob"]
    assert d.source == {"backbone": "net", "weights": "abc123", "preprocessing": "resize 224"}
    assert d.seconds_per_row == 0.25


def test_the_declared_sign_is_read_and_may_be_added_for_a_file_without_one(tmp_path):
    path = write(tmp_path / "x.npz", nonnegative=True)
    assert read_feature_file(path).feature_kind == "hellinger"
    assert read_feature_file(path, nonnegative=True).nonnegative is True
    silent = write(tmp_path / "y.npz")
    assert read_feature_file(silent).nonnegative is None
    assert read_feature_file(silent).feature_kind == "cosine"  # never guessed from the values
    assert read_feature_file(silent, nonnegative=True).feature_kind == "hellinger"
    signed = write(tmp_path / "z.npz", nonnegative=False)
    assert read_feature_file(signed).feature_kind == "cosine"
    with pytest.raises(Refused, match="nonnegative: expected True, as for this dataset"):
        read_feature_file(signed, nonnegative=True)


@pytest.mark.parametrize("part", ["train", "test"])
def test_values_that_contradict_the_declared_sign_are_refused(part, tmp_path):
    rows = ROWS.copy()
    rows[1, 0] = -0.5
    path = write(tmp_path / "x.npz", nonnegative=True, **{part: rows})
    with pytest.raises(Refused, match=rf"{part} rows: expected values of at least 0.*-0\.5 in"):
        read_feature_file(path)
    signed = read_feature_file(write(path, **{part: rows}), nonnegative=False)
    assert signed.feature_kind == "cosine"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["train", "test"])
def test_features_that_are_not_finite_are_refused(part, bad, tmp_path):
    rows = ROWS.copy()
    rows[1, 0] = bad
    path = write(tmp_path / "x.npz", **{part: rows})
    with pytest.raises(Refused, match=rf"x\.npz: {part}: .* values, got NaN or infinity in row 1"):
        read_feature_file(path)


@pytest.mark.parametrize("names", [("X", "y"), ("features", "labels")])
def test_the_pairs_of_arrays_of_sites_and_of_scikit_learn_are_split_alike(names, tmp_path):
    X = np.arange(24.0).reshape(12, 2)
    np.savez(tmp_path / "x.npz", **dict(zip(names, (X, [0, 1] * 6), strict=True)))
    found = read_feature_file(tmp_path / "x.npz")
    assert (len(found.X_train), len(found.X_test)) == (10, 2)
    X[7, 1] = np.nan
    np.savez(tmp_path / "x.npz", **dict(zip(names, (X, [0, 1] * 6), strict=True)))
    with pytest.raises(Refused, match=rf"x\.npz: {names[0]}: expected finite .* in row 7"):
        read_feature_file(tmp_path / "x.npz")


def test_a_file_with_other_arrays_is_told_which_are_expected(tmp_path):
    np.savez(tmp_path / "x.npz", data=ROWS, target=[0, 1])
    with pytest.raises(Refused, match=r"x\.npz: expected arrays X and y, .*, got data, target"):
        read_feature_file(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"train": np.zeros(3)}, r"train: expected an array \(rows, features\), got shape \(3,\)"),
        ({"test": np.zeros((2, 2, 2))}, r"test: expected an array \(rows, features\)"),
        ({"train_labels": [0, 1, 1]}, "2 train rows but 3 labels"),
        ({"test_labels": [0]}, "2 test rows but 1 labels"),
        ({"test_labels": [0, 9]}, "test labels without training rows"),
        ({"train_groups": ["a"]}, "1 groups for 2 training rows"),
        ({"test": np.zeros((2, 3))}, "test rows of shape"),
        ({"train_labels": [[0], [1]]}, "train labels must have one dimension"),
        ({"train_groups": [["a"], ["b"]]}, "groups must have one dimension"),
        ({"seconds_per_row": -1.0}, "seconds_per_row: expected one number"),
    ],
)
def test_feature_files_whose_parts_do_not_match_are_refused(arrays, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        read_feature_file(write(tmp_path / "x.npz", **arrays))


def test_feature_files_without_a_required_array_are_refused(tmp_path):
    np.savez(tmp_path / "c.npz", train=np.zeros((1, 1)), train_labels=[0])
    with pytest.raises(ValueError, match="expected an array 'test_codes'"):
        read_feature_file(tmp_path / "c.npz")
    np.savez(tmp_path / "f.npz", train=ROWS, test=ROWS)
    with pytest.raises(ValueError, match="expected an array 'train_labels', got test, train"):
        read_feature_file(tmp_path / "f.npz")
    np.savez(tmp_path / "e.npz", train=np.array([None], dtype=object))
    with pytest.raises(ValueError, match="plain arrays"):
        read_feature_file(tmp_path / "e.npz")
    with pytest.raises(FileNotFoundError, match=r"expected an \.npz file of features"):
        read_feature_file(tmp_path / "nowhere.npz")


def test_damaged_feature_files_are_refused_with_their_name(tmp_path):
    whole = write(tmp_path / "x.npz").read_bytes()
    half = bytearray(whole)
    half[len(half) // 4] ^= 1
    for name, blob in (("d", b"not a zip file"), ("e", b""), ("f", half)):
        (tmp_path / f"{name}.npz").write_bytes(blob)
        with pytest.raises(ValueError, match=rf"{name}\.npz: expected an \.npz"):
            read_feature_file(tmp_path / f"{name}.npz")


def test_a_truncated_feature_file_is_refused_and_closed(tmp_path):
    path = write(tmp_path / "x.npz")
    path.write_bytes(path.read_bytes()[:-40])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match=r"x\.npz: expected an \.npz"):
            read_feature_file(path)
        gc.collect()
    assert [str(w.message) for w in seen] == []


@pytest.mark.parametrize("kind", ["npy", "deflate"])
def test_other_files_named_npz_are_refused_in_one_sentence(kind, tmp_path):
    path = tmp_path / "x.npz"
    if kind == "npy":
        with path.open("wb") as file:
            np.save(file, ROWS)
    else:
        np.savez_compressed(path, train=np.arange(1000.0).reshape(10, 100))
        blob = bytearray(path.read_bytes())
        blob[60:120] = bytes(b ^ 0xFF for b in blob[60:120])
        path.write_bytes(blob)
    with pytest.raises(ValueError, match=r"x\.npz: expected an "):
        read_feature_file(path)


def X_and_y(rows=20):
    rng = np.random.default_rng(3)
    return rng.random((3 * rows, 4)).astype(np.float32), np.repeat(["a", "b", "c"], rows)


def test_x_and_y_are_split_into_the_same_training_and_test_rows_every_time(tmp_path):
    X, y = X_and_y()
    groups = np.arange(len(y)) % 3
    np.savez(tmp_path / "f.npz", X=X, y=y, groups=groups)
    found = read_feature_file(tmp_path / "f.npz")
    assert found.name == "f"
    assert [list(found.y_test).count(c) for c in "abc"] == [6, 6, 6]
    rows = {tuple(x): (c, g) for x, c, g in zip(X, y, groups, strict=True)}
    train = zip(found.X_train, found.y_train, found.groups, strict=True)
    assert all(rows[tuple(x)] == (c, g) for x, c, g in train)
    assert all(rows[tuple(x)][0] == c for x, c in zip(found.X_test, found.y_test, strict=True))
    together = {tuple(x) for x in np.concatenate([found.X_train, found.X_test])}
    assert together == set(rows)
    assert read_feature_file(tmp_path / "f.npz").hash == found.hash


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_with_a_column_of_labels_equals_x_and_y(suffix, tmp_path):
    X, y = X_and_y()
    np.savez(tmp_path / "f.npz", X=X, y=y)
    labels = [*y.tolist(), ""]  # the last row has no label
    rows = np.concatenate([X, X[:1]])
    path = tmp_path / f"f{suffix}"
    if suffix == ".csv":
        lines = [",".join([*map(repr, x), c]) for x, c in zip(rows.tolist(), labels, strict=True)]
        path.write_text("\n".join(["a,b,c,d,label", *lines]))
    else:
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(
            arrow.table({"label": labels} | {n: rows[:, i] for i, n in enumerate("abcd")}), path
        )
    assert read_feature_file(path).hash == read_feature_file(tmp_path / "f.npz").hash
    assert load_dataset(str(path)).name == "f"


@pytest.mark.parametrize("missing", ["", np.nan])
def test_rows_with_an_empty_label_are_left_out_and_counted(missing, tmp_path):
    X, y = X_and_y()
    y = y if missing == "" else np.repeat([0.0, 1.0, 2.0], 20)
    groups = np.arange(len(y)) % 3
    gone = np.arange(0, 60, 7)
    holes = y.copy()
    holes[gone] = missing
    kept = np.delete(np.arange(60), gone)
    np.savez(tmp_path / "f.npz", X=X, y=holes, groups=groups)
    np.savez(tmp_path / "g.npz", X=X[kept], y=y[kept], groups=groups[kept])
    found, expected = (read_feature_file(tmp_path / f"{name}.npz") for name in "fg")
    assert found.hash == expected.hash
    assert np.array_equal(found.groups, expected.groups)
    assert found.note == "f.npz: 9 of 60 rows have no label and are left out"
    assert expected.note == ""
    parts = {"test": X[:9], "test_labels": y[[0, 0, 0, 1, 1, 1, 2, 2, 2]]}
    np.savez(tmp_path / "h.npz", X_train=X, y_train=holes, train_groups=groups, **parts)
    found = read_feature_file(tmp_path / "h.npz")
    assert np.array_equal(found.X_train, X[kept])
    assert np.array_equal(found.y_train, y[kept])
    assert (len(found.groups), len(found.y_test)) == (51, 9)
    assert found.note == "h.npz: 9 of 69 rows have no label and are left out"
    X[gone[1]] = np.nan  # a site would refuse the file too
    np.savez(tmp_path / "f.npz", X=X, y=holes)
    with pytest.raises(Refused, match="NaN or infinity in row 7, counted from 0"):
        read_feature_file(tmp_path / "f.npz")


def test_columns_that_hide_the_others_are_named_in_the_note(tmp_path):
    X, y = X_and_y()
    X = X * np.where(np.arange(X.shape[1]) == 1, 1e4, 1.0)
    names = [f"c{j}" for j in range(X.shape[1])]
    lines = [",".join([*map(repr, x), label]) for x, label in zip(X.tolist(), y, strict=True)]
    lines += [lines[0].rpartition(",")[0] + ","]
    (tmp_path / "t.csv").write_text("\n".join([",".join([*names, "label"]), *lines]))
    assert read_feature_file(tmp_path / "t.csv").note == (
        "t.csv: 1 of 61 rows have no label and are left out; t.csv: 1 of "
        f"{len(names)} columns ('c1') has 100 % of the rows' energy and hides the others; scale "
        "them, for example with StandardScaler"
    )
    np.savez(tmp_path / "f.npz", X=X, y=y)
    assert "(number 1) has 100 %" in read_feature_file(tmp_path / "f.npz").note


def test_other_arrays_beside_those_of_the_dataset_are_ignored(tmp_path):
    X, y = X_and_y()
    plain, names = {"X": X, "y": y}, np.array(["", "names of the classes"])
    split = {"train": X, "train_labels": y, "test": X[:9], "test_labels": y[:9]}
    for arrays, more in ((plain, {"labels": names}), (split, {"y": names, "labels": names})):
        np.savez(tmp_path / "f.npz", **arrays)
        expected = read_feature_file(tmp_path / "f.npz")
        np.savez(tmp_path / "f.npz", **arrays, **more)
        found = read_feature_file(tmp_path / "f.npz")
        assert (found.hash, found.note) == (expected.hash, "")


def test_every_array_of_rows_is_checked_also_beside_codes(tmp_path):
    X, y = X_and_y()
    codes = {"train_codes": np.zeros(X.shape, np.uint8), "scale": np.ones(X.shape[1])}
    test = np.where(np.arange(len(X))[:, None] == 7, np.nan, X)
    np.savez(tmp_path / "f.npz", **codes, train_labels=y, test=test, test_labels=y)
    with pytest.raises(Refused, match=r"test: expected finite values, got NaN .* in row 7"):
        read_feature_file(tmp_path / "f.npz")
    np.savez(tmp_path / "f.npz", images=X, labels=y)
    with pytest.raises(Refused, match=r"got images, labels$"):
        read_feature_file(tmp_path / "f.npz")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y": None}, "expected an array 'y'"),
        ({"y": np.zeros(5)}, r"y: expected shape \(60,\), got shape \(5,\)"),
        ({"groups": np.zeros((60, 2))}, r"groups: expected shape \(60,\)"),
        ({"y": np.arange(60)}, "four rows or more of some class"),
    ],
)
def test_x_without_fitting_labels_is_refused(arrays, words, tmp_path):
    X, y = X_and_y()
    given = {k: v for k, v in {"X": X, "y": y, **arrays}.items() if v is not None}
    np.savez(tmp_path / "f.npz", **given)
    with pytest.raises(Refused, match=words):
        read_feature_file(tmp_path / "f.npz")
