"""Datasets and image sets by name and by path, and what is said when something is missing."""

import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedran.core.errors import Refused
from fedran.data.catalogue import (
    DATASETS,
    data_file,
    digits,
    har,
    load_dataset,
    load_images,
)
from fedran.data.dataset import as_images
from fedran.data.feature_file import read_feature_file
from helpers.image_files import pack, picture, write_binary, write_folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRAN_DATA", str(tmp_path))
    return tmp_path


def write(path, **fields):
    """A feature file with two rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {"train": np.eye(2), "test": np.eye(2), "train_labels": [0, 1], "test_labels": [1, 0]}
    np.savez(path, **rows, **fields)


def test_data_file_says_what_is_missing_and_where(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDRAN_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="FEDRAN_DATA is not set; set it to the folder"):
        data_file("x.npz")
    monkeypatch.setenv("FEDRAN_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"x\.npz does not exist; put x\.npz \(why\) below"):
        data_file("x.npz", "why")
    write(tmp_path / "x.npz")
    assert data_file("x.npz") == tmp_path / "x.npz"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cifar100-efficientnet_lite0", "hellinger"),
        ("vtab50-efficientnet_lite0", "hellinger"),
        ("vtab50-vit_s14", "cosine"),
        ("cifar100-vit_ti16", "cosine"),
        ("vtab50-vit_ti16", "cosine"),
    ],
)
def test_known_feature_files_are_declared_and_checked(name, kind, folder):
    path = folder / "features" / f"{name}.npz"
    write(path)
    assert load_dataset(name).feature_kind == kind
    write(path, nonnegative=kind != "hellinger")
    with pytest.raises(Refused, match="nonnegative: expected"):
        load_dataset(name)
    rows = {"train": -np.eye(2), "test": np.eye(2), "train_labels": [0, 1], "test_labels": [1, 0]}
    np.savez(path, **rows)
    if kind == "hellinger":
        with pytest.raises(Refused, match="never negative"):
            load_dataset(name)
    else:
        assert load_dataset(name).nonnegative is False


@pytest.mark.parametrize("name", [n for n in DATASETS if n not in ("digits", "cifar100")])
def test_a_missing_dataset_says_how_to_get_it(name, folder, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"\.npz \(.{20,}\) below FEDRAN_DATA="):
        load_dataset(name)
    monkeypatch.delenv("FEDRAN_DATA")
    with pytest.raises(FileNotFoundError, match=r"set it to the folder that holds .*\.npz"):
        load_dataset(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("digit", "digits"), ("har-dsa", "har-dsa19"), ("vtab50-vits14", "vtab50-vit_s14")],
)
def test_load_dataset_suggests_the_nearest_name(name, meant):
    with pytest.raises(ValueError, match=rf"no dataset '{name}' \(did you mean '{meant}'\?\)"):
        load_dataset(name)


def test_a_name_without_a_near_match_lists_all_datasets():
    with pytest.raises(ValueError, match=r"expected one of digits, .*har-dsa19 or the path") as e:
        load_dataset("zzz")
    assert "did you mean" not in str(e.value)


def test_a_relative_path_is_looked_up_in_the_current_folder_first(folder, monkeypatch):
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


def test_digits_are_those_of_scikit_learn():
    X, y = load_digits(return_X_y=True)
    found = digits()
    rows = np.concatenate([found.X_train, found.X_test])
    labels = np.concatenate([found.y_train, found.y_test])
    order, theirs = np.lexsort(16 * rows.T), np.lexsort(X.T)
    assert np.array_equal(16 * rows[order], X[theirs])
    assert np.array_equal(labels[order], y[theirs])


def test_the_images_of_digits_are_their_features():
    dataset = digits()
    found = as_images(dataset)
    assert found.X_train.shape == (1262, 8, 8, 3)
    for X, images in ((dataset.X_train, found.X_train), (dataset.X_test, found.X_test)):
        grey = images[..., 0].reshape(len(X), 64).astype(float)
        assert (images == images[..., :1]).all()
        np.testing.assert_array_equal(np.rint(grey * 16 / 255), 16 * X)
        np.testing.assert_allclose(grey / 255, X, atol=0.5 / 255 + 1e-6)


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
    late = arrays["segments"] >= 45
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


@pytest.mark.parametrize("name", ["labels", "subjects", "segments"])
def test_har_arrays_of_other_lengths_are_refused(name, tmp_path):
    arrays = har_arrays()
    arrays[name] = arrays[name][:-1]
    np.savez(tmp_path / "h.npz", **arrays)
    with pytest.raises(ValueError, match=r"h\.npz"):
        har(tmp_path / "h.npz")


def test_load_images_recognises_the_layout_of_a_folder(tmp_path, monkeypatch):
    pytest.importorskip("PIL")
    monkeypatch.delenv("FEDRAN_DATA", raising=False)
    write_binary(tmp_path / "x" / "cifar-100-binary")
    (tmp_path / "z").mkdir()
    for k in range(11):
        pack(tmp_path / "z" / f"train_{k}.npz", [k], [0])
    pack(tmp_path / "z" / "test.npz", [0], [1])
    assert load_images(write_folder(tmp_path / "pets")).name == "pets"
    assert len(load_images(tmp_path / "x").train) == 5
    packed = load_images(str(tmp_path / "z"))
    np.testing.assert_array_equal(packed.train.pixels(10), picture(10))
    assert len(load_images(tmp_path).train) == 8  # any layout
    with pytest.raises(ValueError, match="the folder that holds the images, got a file"):
        load_images(tmp_path / "z" / "test.npz")


@pytest.mark.parametrize("place", ["data/cifar-100-binary", "cifar-100-binary"])
def test_cifar100_is_found_below_the_data_folder(tmp_path, monkeypatch, place):
    monkeypatch.setenv("FEDRAN_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"holds none of them; download 'CIFAR-100 binary"):
        load_images("cifar100")
    write_binary(tmp_path / place)
    assert len(load_images("cifar100").test) == 3


@pytest.mark.parametrize("name", ["vtab50-vit_ti16", "vtab50-efficientnet_lite0"])
def test_features_of_vtab_come_with_their_images_if_these_have_the_same_labels(folder, name):
    write(folder / "features" / f"{name}.npz")
    assert load_dataset(name).images is None
    with pytest.raises(FileNotFoundError, match=r"vtab50: .*data/vtab50.*put train\.npz"):
        load_images("vtab50")
    (folder / "data" / "vtab50").mkdir(parents=True)
    pack(folder / "data" / "vtab50" / "train.npz", [1, 2], [0, 1])
    pack(folder / "data" / "vtab50" / "test.npz", [3, 4], [0, 1])
    loaded = load_dataset(name)
    assert np.array_equal(loaded.images.pixels(1), picture(2))
    assert loaded.test_images is None  # its labels are in another order


@pytest.mark.skipif("FEDRAN_DATA" not in os.environ, reason="needs the data below FEDRAN_DATA")
def test_stored_images_and_stored_features_have_the_same_labels():
    images = load_images("cifar100")
    stored = Path(os.environ["FEDRAN_DATA"]) / "features" / "cifar100-efficientnet_lite0.npz"
    features = read_feature_file(stored)
    np.testing.assert_array_equal(images.y_train, features.y_train)
    np.testing.assert_array_equal(images.y_test, features.y_test)
    assert images.train.pixels(len(images.train) - 1).shape == (32, 32, 3)
