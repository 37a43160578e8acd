"""``fedran predict``: labels from a saved head and rows of features."""

import numpy as np
import pytest

import fedran


@pytest.fixture
def made(tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat(["cat", "dog"], 40)
    Z = rng.random((80, 6)) + 2 * (y == "dog")[:, None]
    phi = fedran.RandomFeatures(6, 64, seed=3, source="camera 2")
    agg = fedran.Aggregator(64, fingerprint=phi.fingerprint)
    summary = fedran.summarize(phi(Z), y, fingerprint=phi.fingerprint)
    agg.absorb(summary, client="a", task="t")
    fedran.save(agg.solve(), tmp_path / "head.fedran")
    labels = fedran.load(tmp_path / "head.fedran").predict(phi(Z))
    fedran.save(summary, tmp_path / "upload.fedran")
    np.save(tmp_path / "rows.npy", Z)
    np.savez(tmp_path / "rows.npz", features=Z)
    return tmp_path, labels.tolist()


@pytest.mark.parametrize("name", ["rows.npy", "rows.npz"])
def test_predict_prints_one_label_per_line(name, made, cli):
    folder, labels = made
    code, out, err = cli("predict", str(folder / "head.fedran"), str(folder / name))
    assert (code, err) == (0, "")
    assert out.splitlines() == labels


def test_predict_writes_labels_to_a_file(made, cli):
    folder, labels = made
    target = folder / "labels.txt"
    code, out, _ = cli(
        "predict", str(folder / "head.fedran"), str(folder / "rows.npy"), "--out", str(target)
    )
    assert code == 0
    assert "80 labels in" in out
    assert target.read_text().splitlines() == labels


@pytest.mark.parametrize(
    ("head", "rows", "words"),
    [
        ("upload.fedran", "rows.npy", "upload.fedran: kind: expected head, got summary"),
        ("head.fedran", "none.npy", "no such file; expected features"),
        ("none.fedran", "rows.npy", "none.fedran: no such file; expected a saved head"),
        ("head.fedran", "bad.npz", "expected an array features or test or X, got other"),
        ("head.fedran", "bad.npy", "expected features (.npy or .npz)"),
        ("head.fedran", "wide.npy", "6"),
        ("plain.fedran", "rows.npy", "a head that identifies its features"),
    ],
)
def test_predict_refuses_wrong_files_in_one_line(head, rows, words, made, cli):
    folder, _ = made
    np.savez(folder / "bad.npz", other=[1])
    (folder / "bad.npy").write_bytes(b"nothing")
    np.save(folder / "wide.npy", np.zeros((2, 9)))
    agg = fedran.Aggregator(4)
    agg.absorb(fedran.summarize(np.eye(4), [0, 1, 0, 1]), client="a", task="t")
    fedran.save(agg.solve(), folder / "plain.fedran")
    code, out, err = cli("predict", str(folder / head), str(folder / rows))
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_fingerprint_of_another_map_is_refused():
    phi = fedran.RandomFeatures(3, 8, seed=5, source="x")
    assert fedran.RandomFeatures.from_fingerprint(phi.fingerprint).fingerprint == phi.fingerprint
    wrong = [
        ("kind", "tanh"),
        ("bias", 1),
        ("map_version", 1),
        ("map_version", 2.0),
        ("d", 0),
        ("seed", "a"),
    ]
    for name, value in wrong:
        other = type(phi.fingerprint)({**phi.fingerprint.fields, name: value})
        with pytest.raises(fedran.Refused, match="fingerprint: expected"):
            fedran.RandomFeatures.from_fingerprint(other)
