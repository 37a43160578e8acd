"""The validation set on which new heads are tested."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

import fedran
from fedran.core.errors import Refused
from fedran.core.features import feature_map
from fedran.federation.server.head.validation import ValidationSet
from helpers.federation.made_federation import SETTINGS, D, Sites, summary, upload


@pytest.fixture(scope="module")
def sites():
    return Sites("site-1", "site-2")


@pytest.fixture
def here(sites, tmp_path):
    sites.roster.save(tmp_path / "roster.toml")
    return tmp_path


def head(make=upload):
    message = fedran.decode(make(0, classes=("cat", "dog")))
    server = fedran.Aggregator(fingerprint=message.fingerprint)
    server.absorb(message, client="a", task="t")
    return server.solve()


def rows(here, labels, **arrays):
    X = np.random.default_rng(0).random((len(labels), D))
    np.savez(here / "v.npz", **{"features": X, "labels": np.array(labels), **arrays})
    settings = replace(SETTINGS, validation="v.npz")
    return ValidationSet.load(here, settings)


def test_settings_without_a_validation_file_give_no_validation_set(here):
    assert ValidationSet.load(here, SETTINGS) is None


@pytest.mark.parametrize("make", [upload, summary])
def test_accuracy_counts_rows_of_known_classes_only(make, here):
    labels = ["cat", "dog"] * 20 + ["bird"] * 40 + [""] * 3
    found = rows(here, labels)
    model = head(make)
    with np.load(here / "v.npz") as file:
        X = file["features"][:40]
    found = replace(found, phi=(phi := feature_map(model.fingerprint)))
    expected = np.mean(model.predict(phi(X)) == np.array(labels[:40]))
    assert 0 < expected < 1
    assert found.test(model)[0] == expected


@pytest.mark.parametrize("labels", [["bird"] * 4, [""] * 4, [0, 1, 0, 1]])
def test_accuracy_is_none_without_rows_of_known_classes(labels, here):
    assert rows(here, labels).test(head()) == (None, None)


def test_a_damaged_validation_file_is_refused_in_one_sentence(here):
    settings = replace(SETTINGS, validation="v.npz")
    for text in (None, b"", b"PK nonsense"):
        if text is not None:
            (here / "v.npz").write_bytes(text)
        with pytest.raises(Refused, match=r"v\.npz: expected an \.npz file") as caught:
            ValidationSet.load(here, settings)
        assert "\n" not in str(caught.value)


def test_a_validation_table_may_name_its_column_of_labels(here):
    cells = ",".join(["0.5"] * D)
    names = ",".join(f"f{i}" for i in range(D))
    (here / "v.csv").write_text(f"{names},species\n{cells},cat\n")
    settings = replace(SETTINGS, validation="v.csv")
    with pytest.raises(Refused, match='set label_column = "species" in server'):
        ValidationSet.load(here, settings)
    found = ValidationSet.load(here, replace(settings, label_column="species"))
    assert found.rows.y == ["cat"]


def test_a_validation_file_with_pickled_objects_is_refused(here):
    np.savez(here / "v.npz", features=np.array([[{}]], dtype=object), labels=np.array([1]))
    with pytest.raises(Refused, match=r"v\.npz: expected an \.npz file .* Python objects"):
        ValidationSet.load(here, replace(SETTINGS, validation="v.npz"))


@pytest.mark.parametrize(
    "arrays",
    [
        {"features": np.ones((2, D + 1))},
        {"images": np.zeros((2, 4, 4, 3), np.uint8)},
        {"features": np.full((2, D), np.nan)},
    ],
)
def test_validation_rows_of_the_wrong_shape_are_refused(arrays, here):
    X = arrays.get("features")
    file = {"labels": np.array(["cat", "dog"]), **({"features": X} if X is not None else arrays)}
    np.savez(here / "v.npz", **file)
    with pytest.raises(ValueError, match=r"v\.npz"):
        ValidationSet.load(here, replace(SETTINGS, validation="v.npz"))


def test_negative_validation_rows_are_refused_under_hellinger(here):
    X = np.ones((2, D))
    X[1, 2] = -0.5
    np.savez(here / "v.npz", features=X, labels=np.array(["cat", "dog"]))
    settings = replace(SETTINGS, validation="v.npz")
    assert ValidationSet.load(here, settings) is not None
    with pytest.raises(Refused, match=r"v\.npz: expected values of at least 0.*-0\.5 in row 1"):
        ValidationSet.load(here, replace(settings, kind="hellinger"))
