"""The feature store: computed once, resumed, and safe from damage."""

import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from fedran.backbones import store
from fedran.backbones.preprocessing import Preprocessing
from fedran.core.errors import Refused
from fedran.data.feature_file import read_feature_file
from helpers.toy_backbone import Pictures, expected, toy

pytest.importorskip("PIL")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(store, "CHUNK", 16)


def extract(images, backbone, folder, batch_size=None, out="features.npz", **more):
    return store.extract(images, backbone, folder, folder / out, batch_size=batch_size, **more)


def chunks(folder):
    return sorted(folder.glob("*/*.safetensors"))


def test_the_feature_file_holds_features_labels_and_their_source(tmp_path):
    images, (backbone, _) = Pictures(), toy()
    path = extract(images, backbone, tmp_path)
    data = read_feature_file(path)
    for found, wanted in zip((data.X_train, data.X_test), expected(images), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    np.testing.assert_array_equal(data.y_train, images.y_train)
    np.testing.assert_array_equal(data.y_test, images.y_test)
    assert data.source == backbone.source
    assert data.seconds_per_row > 0
    assert path.parent == tmp_path
    assert json.loads(next(tmp_path.glob("*/source.json")).read_text()) == backbone.source


def test_the_declared_sign_is_stored_and_checked_also_for_kept_features(tmp_path):
    images = Pictures()
    signed, _ = toy(factor=-1.0)
    path = extract(images, signed, tmp_path, out=tmp_path / "signed.npz")
    assert read_feature_file(path).nonnegative is False
    with pytest.raises(Refused, match="declares features that are never negative"):
        extract(images, replace(signed, nonnegative=True), tmp_path, out=tmp_path / "no.npz")
    assert not (tmp_path / "no.npz").exists()
    other, _ = toy(weights="1" * 64)
    declared = replace(other, nonnegative=True)
    assert read_feature_file(extract(images, declared, tmp_path)).feature_kind == "hellinger"


def test_no_image_is_computed_twice(tmp_path):
    images, (backbone, computed) = Pictures(), toy()
    calls = []
    first = read_feature_file(
        extract(images, backbone, tmp_path, 7, progress=lambda *c: calls.append(c))
    )
    assert sum(computed) == images.distinct < len(images.train) + len(images.test)
    assert calls[0] == (0, images.distinct)
    assert calls[-1] == (images.distinct, images.distinct)
    again = read_feature_file(extract(images, backbone, tmp_path, out=tmp_path / "again.npz"))
    assert sum(computed) == images.distinct
    np.testing.assert_array_equal(first.X_train, again.X_train)
    assert again.seconds_per_row == pytest.approx(first.seconds_per_row)
    # The same images in another set are known already, new ones are added.
    extract(Pictures(n=60, m=10), backbone, tmp_path)
    assert sum(computed) <= images.distinct + 1


@pytest.mark.parametrize("batch_size", [1, 5, 16, 1000])
def test_chunks_do_not_depend_on_the_batch(tmp_path, batch_size):
    images, (backbone, computed) = Pictures(), toy()
    data = read_feature_file(extract(images, backbone, tmp_path, batch_size))
    assert len(chunks(tmp_path)) == -(-images.distinct // 16)
    assert max(computed) == min(batch_size, 16)
    np.testing.assert_allclose(data.X_train, expected(images)[0], rtol=1e-5)


def test_an_interruption_loses_at_most_one_chunk(tmp_path):
    images, (backbone, computed) = Pictures(), toy()

    def stop(done, _):
        if done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(images, backbone, tmp_path, 4, progress=stop)
    assert len(chunks(tmp_path)) == 2
    assert not list(tmp_path.glob("*.npz"))
    calls = []
    data = read_feature_file(
        extract(images, backbone, tmp_path, 4, progress=lambda *c: calls.append(c))
    )
    assert calls[0] == (32, images.distinct)
    assert sum(computed) == images.distinct + 8
    np.testing.assert_allclose(data.X_train, expected(images)[0], rtol=1e-5)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_chunk_is_reported_and_computed_again(tmp_path, damage):
    images, (backbone, computed) = Pictures(), toy()
    extract(images, backbone, tmp_path)
    victim = chunks(tmp_path)[1]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    changed = {"cut": content[: len(content) // 2], "flipped": content, "empty": b""}[damage]
    victim.write_bytes(changed)
    before, said = sum(computed), []
    data = read_feature_file(extract(images, backbone, tmp_path, notice=said.append))
    assert 0 < sum(computed) - before <= 16
    assert len(said) == 1
    assert victim.name in said[0]
    assert "computed again" in said[0]
    np.testing.assert_allclose(data.X_train, expected(images)[0], rtol=1e-5)
    extract(images, backbone, tmp_path, notice=said.append)
    assert len(said) == 1


def test_a_half_written_chunk_is_never_read(tmp_path):
    images, (backbone, _) = Pictures(), toy()
    extract(images, backbone, tmp_path)
    whole = chunks(tmp_path)[0]
    whole.rename(whole.with_name(f".{whole.name}.abc.part"))
    said = []
    extract(images, backbone, tmp_path, notice=said.append)
    assert not said
    assert len(chunks(tmp_path)) == -(-images.distinct // 16)


def test_other_weights_use_another_folder_of_the_store(tmp_path):
    images = Pictures()
    first = extract(images, toy()[0], tmp_path)
    other, computed = toy(weights="1" * 64, factor=2.0)
    second = extract(images, other, tmp_path, out="other.npz")
    assert first != second
    assert len(list(tmp_path.glob("*/source.json"))) == 2
    assert sum(computed) == images.distinct
    np.testing.assert_allclose(read_feature_file(second).X_test, expected(images, 2)[1], rtol=1e-5)
    assert read_feature_file(second).source["weights"] == "1" * 64


def test_paths_that_cannot_be_written_are_errors_before_computing(tmp_path):
    backbone, computed = toy()
    (tmp_path / "folder.npz").mkdir()
    for out, word in (("a.txt", "ends in .npz"), ("no/a.npz", "does not exist")):
        with pytest.raises((ValueError, FileNotFoundError), match=word):
            extract(Pictures(), backbone, tmp_path, out=tmp_path / out)
    with pytest.raises(PermissionError, match="it is a folder"):
        extract(Pictures(), backbone, tmp_path, out=tmp_path / "folder.npz")
    assert not computed


def test_features_that_are_not_finite_are_never_stored(tmp_path):
    backbone, _ = toy(factor=np.nan)
    with pytest.raises(ValueError, match="features of toy holds NaN"):
        extract(Pictures(), backbone, tmp_path)
    assert not chunks(tmp_path)


def test_of_large_images_fewer_are_in_memory_than_there_are_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    real, lock, now, most = Preprocessing.__call__, threading.Lock(), [], []

    def preprocess(self, pixels):
        with lock:
            now.append(pixels)
            most.append(len(now))
        time.sleep(0.02)
        with lock:
            now.pop()
        return real(self, pixels)

    monkeypatch.setattr(Preprocessing, "__call__", preprocess)
    for memory, threads in ((2**31, 8), (3 * store.WORKING_BYTES * 4 * 4 * 3, 3), (0, 2)):
        monkeypatch.setattr(store, "MEMORY", memory)
        most.clear()
        extract(Pictures(seed=threads), toy()[0], tmp_path, 16)
        assert max(most) == threads
