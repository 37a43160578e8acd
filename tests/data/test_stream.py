import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedran.data.dataset import Dataset
from fedran.data.digits import digits
from fedran.data.packed import data_file, packed_features
from fedran.data.partition import dirichlet
from fedran.data.stream import make_stream


@given(st.integers(0, 60), st.integers(1, 9), st.floats(1e-3, 100), st.integers(0, 2**32))
def test_dirichlet_deals_every_row_exactly_once(n, clients, beta, seed):
    rows = np.arange(100, 100 + n)
    parts = dirichlet(rows, clients, beta, np.random.default_rng(seed))
    assert len(parts) == clients
    assert sorted(np.concatenate(parts)) == list(rows)


@pytest.mark.parametrize("beta", [0.0, -1.0, np.nan, np.inf])
def test_impossible_concentration_is_refused(beta):
    with pytest.raises(ValueError, match="beta must be positive"):
        dirichlet(np.arange(3), 2, beta, np.random.default_rng(0))
    with pytest.raises(ValueError, match="n_clients"):
        dirichlet(np.arange(3), 0, 1.0, np.random.default_rng(0))


def test_smaller_beta_means_more_skew():
    def largest_share(beta):
        rng = np.random.default_rng(0)
        parts = [dirichlet(np.arange(1000), 5, beta, rng) for _ in range(50)]
        return np.mean([max(len(p) for p in ps) for ps in parts])

    assert largest_share(0.1) > largest_share(1.0) > largest_share(100.0)


def test_stream_follows_the_published_recipe():
    labels = np.random.default_rng(5).integers(0, 10, 400)
    stream = make_stream(labels, n_tasks=5, n_clients=3, beta=0.5, seed=7)
    rng = np.random.default_rng(7)
    order = rng.permutation(10)
    for t, task in enumerate(stream.tasks):
        expected = [[] for _ in range(3)]
        for c in order[2 * t : 2 * t + 2]:
            idx = rng.permutation(np.flatnonzero(labels == c))
            p = rng.dirichlet([0.5] * 3)
            for k, part in enumerate(np.split(idx, (np.cumsum(p) * len(idx)).astype(int)[:-1])):
                expected[k].extend(part)
        assert task.classes == tuple(order[2 * t : 2 * t + 2])
        assert [list(r) for r in task.rows] == expected


def test_streams_are_disjoint_complete_and_seeded():
    labels = np.repeat(np.arange(7), 11)
    first = make_stream(labels, n_tasks=3, n_clients=4, beta=0.3, seed=1)
    rows = np.concatenate([r for t in first.tasks for r in t.rows])
    assert sorted(rows) == list(range(77))
    assert sorted(c for t in first.tasks for c in t.classes) == list(range(7))
    again = make_stream(labels, n_tasks=3, n_clients=4, beta=0.3, seed=1)
    assert again.hash == first.hash
    other = make_stream(labels, n_tasks=3, n_clients=4, beta=0.3, seed=1, partition_seed=2)
    assert other.hash != first.hash
    assert [t.classes for t in other.tasks] == [t.classes for t in first.tasks]
    assert first.seen(2) == tuple(range(7))


def test_string_labels_make_streams_too():
    stream = make_stream(np.array(["b", "a", "b", "c"]), n_tasks=3, n_clients=1, beta=1, seed=0)
    assert stream.seen(2) == ("a", "b", "c")


@pytest.mark.parametrize("n_tasks", [0, 4])
def test_more_tasks_than_classes_is_refused(n_tasks):
    with pytest.raises(ValueError, match="n_tasks must lie in 1"):
        make_stream(np.array([0, 1, 2]), n_tasks=n_tasks, n_clients=1, beta=1, seed=0)


def test_digits_split_is_fixed_and_stratified():
    first, second = digits(), digits()
    assert first.hash == second.hash
    assert first.X_train.max() <= 1.0
    shares = np.bincount(first.y_test) / np.bincount(np.r_[first.y_train, first.y_test])
    assert np.all(np.abs(shares - 0.3) < 0.01)


def test_datasets_with_mismatched_parts_are_refused():
    X, y = np.zeros((3, 2)), np.array([0, 1, 1])
    with pytest.raises(ValueError, match="3 train rows but 2 labels"):
        Dataset("d", "features", X, y[:2], X, y)
    with pytest.raises(ValueError, match="without training rows"):
        Dataset("d", "features", X, y, X, y + 1)


def test_packed_features_in_both_layouts(tmp_path):
    codes = np.array([[0, 255], [128, 64]], dtype=np.uint8)
    scale = np.array([2.0, 3.0], dtype=np.float32)
    labels = {"train_labels": [0, 1], "test_labels": [1, 0]}
    np.savez(tmp_path / "a.npz", train_codes=codes, test_codes=codes, scale=scale, **labels)
    expected = (codes / 255.0 * scale) ** 2
    assert np.allclose(packed_features(tmp_path / "a.npz").X_train, expected, rtol=1e-6)
    np.savez(tmp_path / "b.npz", train=expected, test=expected.astype(np.float16), **labels)
    assert packed_features(tmp_path / "b.npz").X_test.dtype == np.float32


def test_bad_feature_files_say_what_is_wrong(tmp_path, monkeypatch):
    np.savez(tmp_path / "c.npz", train=np.zeros((1, 1)))
    with pytest.raises(ValueError, match="expected an array 'test_codes'"):
        packed_features(tmp_path / "c.npz")
    (tmp_path / "d.npz").write_bytes(b"not a zip file")
    with pytest.raises(ValueError, match=r"d\.npz: expected an \.npz"):
        packed_features(tmp_path / "d.npz")
    np.savez(tmp_path / "e.npz", train=np.array([None], dtype=object))
    with pytest.raises(ValueError, match="plain arrays"):
        packed_features(tmp_path / "e.npz")
    monkeypatch.delenv("FEDRAN_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="FEDRAN_DATA is not set"):
        data_file("x.npz")
    monkeypatch.setenv("FEDRAN_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        data_file("x.npz")
    assert data_file("c.npz").name == "c.npz"
