"""Datasets by name and by path: what arrives, and what is said when something is missing."""

import gc
import warnings

import numpy as np
import pytest

from fedran.data.catalogue import DATASETS, load_dataset
from fedran.data.har import TEST_FROM, har
from fedran.data.packed import data_file, packed_features

LABELS = {"train_labels": [0, 1], "test_labels": [1, 0]}
ROWS = np.array([[0.0, 1.0], [2.0, 3.0]])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRAN_DATA", str(tmp_path))
    return tmp_path


def write(path, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{"train": ROWS, "test": ROWS, **LABELS, **arrays})
    return path


def test_packed_features_in_both_layouts(tmp_path):
    codes = np.array([[0, 255], [128, 64]], dtype=np.uint8)
    scale = np.array([2.0, 3.0], dtype=np.float32)
    np.savez(tmp_path / "a.npz", train_codes=codes, test_codes=codes, scale=scale, **LABELS)
    expected = (codes / 255.0 * scale) ** 2
    assert np.allclose(packed_features(tmp_path / "a.npz").X_train, expected, rtol=1e-6)
    np.savez(tmp_path / "b.npz", train=expected, test=expected.astype(np.float16), **LABELS)
    assert packed_features(tmp_path / "b.npz").X_test.dtype == np.float32


def test_what_the_file_says_of_its_features_arrives(tmp_path):
    path = write(
        tmp_path / "x.npz",
        train_groups=["ann", "bob"],
        backbone="net",
        weights="abc123",
        preprocessing="resize 224",
        seconds_per_row=0.25,
    )
    d = packed_features(path)
    assert d.name == "x"
    assert d.groups.tolist() == ["ann", "bob"]
    assert d.source == {"backbone": "net", "weights": "abc123", "preprocessing": "resize 224"}
    assert d.seconds_per_row == 0.25
    assert packed_features(path, "other").name == "other"


def test_what_the_file_does_not_say_is_absent(tmp_path):
    d = packed_features(write(tmp_path / "x.npz"))
    assert (d.groups, dict(d.source), d.seconds_per_row) == (None, {}, None)
    unknown = write(tmp_path / "y.npz", seconds_per_row=np.nan)
    assert packed_features(unknown).seconds_per_row is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["train", "test"])
def test_features_that_are_not_finite_are_refused(part, bad, tmp_path):
    rows = ROWS.copy()
    rows[1, 0] = bad
    path = write(tmp_path / "x.npz", **{part: rows})
    with pytest.raises(ValueError, match=rf"x\.npz: {part} holds NaN or infinite"):
        packed_features(path)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"train": np.zeros(3)}, r"train must be \(rows, features\), got shape \(3,\)"),
        ({"test": np.zeros((2, 2, 2))}, r"test must be \(rows, features\)"),
        ({"train_labels": [0, 1, 1]}, "2 train rows but 3 labels"),
        ({"test_labels": [0]}, "2 test rows but 1 labels"),
        ({"test_labels": [0, 9]}, "test labels without training rows"),
        ({"train_groups": ["a"]}, "1 groups for 2 training rows"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(arrays, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        packed_features(write(tmp_path / "x.npz", **arrays))


def test_bad_feature_files_say_what_is_wrong(tmp_path):
    np.savez(tmp_path / "c.npz", train=np.zeros((1, 1)))
    with pytest.raises(ValueError, match="expected an array 'test_codes'"):
        packed_features(tmp_path / "c.npz")
    np.savez(tmp_path / "f.npz", train=ROWS, test=ROWS)
    with pytest.raises(ValueError, match="expected an array 'train_labels', found"):
        packed_features(tmp_path / "f.npz")
    np.savez(tmp_path / "e.npz", train=np.array([None], dtype=object))
    with pytest.raises(ValueError, match="plain arrays"):
        packed_features(tmp_path / "e.npz")
    with pytest.raises(FileNotFoundError, match=r"expected an \.npz file of features"):
        packed_features(tmp_path / "nowhere.npz")


def test_damaged_feature_files_are_named(tmp_path):
    whole = write(tmp_path / "x.npz").read_bytes()
    half = bytearray(whole)
    half[len(half) // 4] ^= 1
    for name, blob in (("d", b"not a zip file"), ("e", b""), ("f", half)):
        (tmp_path / f"{name}.npz").write_bytes(blob)
        with pytest.raises(ValueError, match=rf"{name}\.npz: expected an \.npz"):
            packed_features(tmp_path / f"{name}.npz")


def test_a_feature_file_that_was_cut_off_is_named_and_closed(tmp_path):
    path = write(tmp_path / "x.npz")
    path.write_bytes(path.read_bytes()[:-40])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match=r"x\.npz: expected an \.npz"):
            packed_features(path)
        gc.collect()
    assert [str(w.message) for w in seen] == []


@pytest.mark.parametrize("kind", ["npy", "deflate"])
def test_other_files_named_npz_are_refused_in_a_sentence(kind, tmp_path):
    path = tmp_path / "x.npz"
    if kind == "npy":
        with path.open("wb") as file:
            np.save(file, ROWS)
    else:
        np.savez_compressed(path, train=np.arange(1000.0).reshape(10, 100))
        blob = bytearray(path.read_bytes())
        blob[60:120] = bytes(b ^ 0xFF for b in blob[60:120])
        path.write_bytes(blob)
    with pytest.raises(ValueError, match=r"x\.npz: expected an \.npz"):
        packed_features(path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"test": np.zeros((2, 3))},
        {"train_labels": [[0], [1]]},
        {"train_labels": [[0, 1], [1, 0]]},
        {"test_labels": [[0], [1]]},
        {"train_groups": [["a"], ["b"]]},
        {"seconds_per_row": -1.0},
    ],
)
def test_arrays_of_the_wrong_shape_are_refused(arrays, tmp_path):
    with pytest.raises(ValueError):
        packed_features(write(tmp_path / "x.npz", **arrays))


def test_a_missing_data_folder_says_what_and_where(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDRAN_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="FEDRAN_DATA is not set; set it to the folder"):
        data_file("x.npz")
    monkeypatch.setenv("FEDRAN_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"x\.npz does not exist; put x\.npz \(why\) below"):
        data_file("x.npz", "why")
    write(tmp_path / "x.npz")
    assert data_file("x.npz") == tmp_path / "x.npz"


@pytest.mark.parametrize("name", [n for n in DATASETS if n not in ("digits", "cifar100")])
def test_every_dataset_that_is_not_here_says_how_to_get_it(name, folder, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"\.npz \(.{20,}\) below FEDRAN_DATA="):
        load_dataset(name)
    monkeypatch.delenv("FEDRAN_DATA")
    with pytest.raises(FileNotFoundError, match=r"set it to the folder that holds .*\.npz"):
        load_dataset(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("digit", "digits"), ("har-dsa", "har-dsa19"), ("vtab50-vits14", "vtab50-vit_s14")],
)
def test_an_unknown_name_suggests_the_nearest(name, meant):
    with pytest.raises(ValueError, match=rf"no dataset '{name}' \(did you mean '{meant}'\?\)"):
        load_dataset(name)


def test_a_name_like_no_other_lists_them_all():
    with pytest.raises(ValueError, match=r"expected one of digits, .*har-dsa19 or the path") as e:
        load_dataset("zzz")
    assert "did you mean" not in str(e.value)


def test_a_relative_path_is_looked_up_here_then_below_the_data_folder(folder, monkeypatch):
    here = folder / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    write(folder / "sub" / "x.npz", backbone="below")
    assert load_dataset("sub/x.npz").source["backbone"] == "below"
    write(here / "sub" / "x.npz", backbone="here")
    assert load_dataset("sub/x.npz").source["backbone"] == "here"
    assert load_dataset(str(folder / "sub" / "x.npz")).source["backbone"] == "below"
    with pytest.raises(FileNotFoundError, match=r"y\.npz \(made by `fedran features`\) below"):
        load_dataset("y.npz")
    with pytest.raises(FileNotFoundError, match="expected an"):
        load_dataset(str(folder / "y.npz"))


def har_arrays(n_columns=3):
    """Two people, two activities, 60 segments each; the last column never changes."""
    people, labels, segments = (
        a.ravel() for a in np.meshgrid([1, 2], [0, 1], np.arange(60), indexing="ij")
    )
    rng = np.random.default_rng(0)
    X = 5 + 3 * rng.standard_normal((len(labels), n_columns)) + labels[:, None]
    X[:, -1] = 7.0
    return {"features": X, "labels": labels, "subjects": people, "segments": segments}


def test_har_is_split_by_segment_and_standardised_on_the_training_rows(folder):
    arrays = har_arrays()
    path = folder / "data" / "har_dsa19" / "features.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, **arrays)
    d = load_dataset("har-dsa19")
    late = arrays["segments"] >= TEST_FROM
    assert (len(d.X_train), len(d.X_test)) == (4 * 45, 4 * 15)
    assert np.array_equal(d.y_test, arrays["labels"][late])
    assert np.array_equal(d.groups, arrays["subjects"][~late])
    assert d.X_train.dtype == np.float32
    assert np.allclose(d.X_train.mean(axis=0), 0, atol=1e-4)
    assert np.allclose(d.X_train[:, :-1].std(axis=0), 1, atol=1e-4)
    assert np.all(d.X_train[:, -1] == 0)
    X = arrays["features"]
    expected = (X[late, 0] - X[~late, 0].mean()) / X[~late, 0].std()
    assert np.allclose(d.X_test[:, 0], expected, atol=1e-4)


def test_a_har_file_without_an_array_says_which(tmp_path):
    arrays = har_arrays()
    del arrays["segments"]
    np.savez(tmp_path / "h.npz", **arrays)
    with pytest.raises(ValueError, match="expected an array 'segments', found"):
        har(tmp_path / "h.npz")


def test_har_features_that_are_not_finite_are_refused(tmp_path):
    arrays = har_arrays()
    arrays["features"][3, 0] = np.nan
    np.savez(tmp_path / "h.npz", **arrays)
    with pytest.raises(ValueError, match="NaN"):
        har(tmp_path / "h.npz")


@pytest.mark.parametrize("name", ["labels", "subjects", "segments"])
def test_har_arrays_of_other_lengths_are_refused(name, tmp_path):
    arrays = har_arrays()
    arrays[name] = arrays[name][:-1]
    np.savez(tmp_path / "h.npz", **arrays)
    with pytest.raises(ValueError, match=r"h\.npz"):
        har(tmp_path / "h.npz")
