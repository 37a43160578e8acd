"""``fedran predict``: labels from a saved head and rows of features."""

import csv
import io
import json
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas
import pytest

import fedran
from fedran.core.features import feature_map
from fedran.data.rows import read_table


@pytest.fixture(params=["linear", "kernel"])
def made(tmp_path, request):
    rng = np.random.default_rng(0)
    y = np.repeat(["cat", "dog"], 40)
    Z = rng.random((80, 6)) + 2 * (y == "dog")[:, None]
    phi = fedran.RandomFeatures(6, 64, seed=3, source="camera 2")
    summary = message = fedran.summarize(phi(Z), y, fingerprint=phi.fingerprint)
    if request.param == "kernel":
        phi = fedran.KernelFeatures(6, source="camera 2")
        message = fedran.condense(phi(Z), y, fingerprint=phi.fingerprint)
    agg = fedran.Aggregator(fingerprint=phi.fingerprint)
    agg.absorb(message, client="a", task="t")
    fedran.save(replace(agg.solve(), calibration=None), tmp_path / "head.fedran")
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


@pytest.mark.parametrize(
    ("head", "rows", "words"),
    [
        ("upload.fedran", "rows.npy", "upload.fedran: kind: expected head, got summary"),
        ("head.fedran", "none.npy", "none.npy: no such file; expected a folder of images"),
        ("none.fedran", "rows.npy", "none.fedran: no such file; expected a saved head"),
        (
            "head.fedran",
            "bad.npz",
            "bad.npz: expected arrays X and y, features and labels, or train",
        ),
        ("head.fedran", "bad.npy", "bad.npy: expected an .npz file of plain arrays, got a damaged"),
        (
            "head.fedran",
            "words.csv",
            "line 2: expected numbers in column name, got text; leave the column out",
        ),
        ("head.fedran", "ragged.csv", "ragged.csv, line 2: expected 6 columns, got 2"),
        ("head.fedran", "empty.csv", "expected a header and rows, got an empty file"),
        ("head.fedran", "header.csv", "expected at least one row, got none"),
        ("head.fedran", "hole.csv", "line 2: expected numbers in column b, got an empty value"),
        ("head.fedran", "semicolons.csv", "separated by commas, got semicolons; write"),
        ("head.fedran", "labels.csv", "at least one column of features"),
        ("head.fedran", "latin.csv", "a CSV file in UTF-8"),
        ("head.fedran", "wide.npy", "wide.npy: expected rows of 6 features, got shape (2, 9)"),
        ("head.fedran", "text.npy", "text.npy: X: expected numbers, got the dtype <U1"),
        ("head.fedran", "none.npz", "none.npz: expected at least one row, got none"),
        (
            "head.fedran",
            "nan.npy",
            "nan.npy: X: expected finite values, got NaN or infinity in row 1",
        ),
        ("head.fedran", "objects.npz", "Python objects (X); save features as numbers"),
        ("head.fedran", "/dev/null", "/dev/null: this is a pipe or a device"),
        ("plain.fedran", "rows.npy", "a head that identifies its features"),
    ],
)
def test_predict_refuses_wrong_files_in_one_line(head, rows, words, made, cli):
    folder, _ = made
    np.savez(folder / "bad.npz", other=[1])
    (folder / "bad.npy").write_bytes(b"nothing")
    np.save(folder / "wide.npy", np.zeros((2, 9)))
    np.save(folder / "text.npy", np.array([["a"] * 6]))
    np.save(folder / "nan.npy", np.array([[1.0] * 6, [np.nan] * 6]))
    np.savez(folder / "none.npz", X=np.zeros((0, 6)))
    np.savez(folder / "objects.npz", X=np.array([["a", None]], dtype=object))
    (folder / "words.csv").write_text("name,a,b,c,d,e,f\nada,1,2,3,4,5,6\n")
    (folder / "ragged.csv").write_text("1,2,3,4,5,6\n1,2\n")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("a,b,c,d,e,f\n")
    (folder / "hole.csv").write_text("a,b,c,d,e,f\n1,,3,4,5,6\n")
    (folder / "semicolons.csv").write_text("a;b\n1;2\n")
    (folder / "labels.csv").write_text("label\ncat\n")
    (folder / "latin.csv").write_bytes("a,\u00e4\n1,2\n".encode("latin-1"))
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


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("header", ["a,b,c,d,e,f", "a,b,c,d,e,f,label", "0,1,2,3,4,5", None])
def test_rows_of_a_csv_file_are_those_of_the_array(header, made, cli):
    folder, labels = made
    Z = np.load(folder / "rows.npy")
    end = ",dog" if header and "label" in header else ""
    lines = [",".join(map(repr, row)) + end for row in Z.tolist()]
    (folder / "rows.csv").write_text("\n".join([header, *lines] if header else lines))
    code, out, err = cli("predict", str(folder / "head.fedran"), str(folder / "rows.csv"))
    assert (code, err) == (0, "")
    assert out.splitlines() == labels


def test_a_table_has_ids_and_labels(made, cli):
    folder, labels = made
    Z = np.load(folder / "rows.npy")
    lines = [",".join([*map(repr, row), f"p{i}"]) for i, row in enumerate(Z.tolist())]
    (folder / "rows.csv").write_text("\n".join(["a,b,c,d,e,f,patient", *lines]))
    files = (str(folder / "head.fedran"), str(folder / "rows.csv"))
    code, out, err = cli("predict", *files, "--id", "patient")
    assert (code, err) == (0, "")
    found = table(out)
    assert [line["id"] for line in found] == [f"p{i}" for i in range(len(Z))]
    assert [line["label"] for line in found] == labels
    code, _, err = cli("predict", *files, "--id", "nobody")
    assert (code, "one column nobody, got the columns a, b, c, d, e, f, p" in err) == (2, True)
    for option in ("--id", "--label"):
        code, _, err = cli("predict", files[0], str(folder / "rows.npy"), option, "a")
        assert (code, f"{option} names a column of a table, got the file" in err) == (2, True)


def test_a_column_of_labels_with_another_name_is_no_feature(made, cli):
    folder, labels = made
    lines = [",".join([*map(repr, row), "cat"]) for row in np.load(folder / "rows.npy").tolist()]
    (folder / "rows.csv").write_text("\n".join(["a,b,c,d,e,f,kind", *lines]))
    files = (str(folder / "head.fedran"), str(folder / "rows.csv"))
    code, out, err = cli("predict", *files, "--label", "kind")
    assert (code, out.splitlines(), err) == (0, labels, "")
    code, _, err = cli("predict", *files, "--label", "king")
    assert (code, "one column king (did you mean 'kind'?), got the columns a, b, c" in err) == (
        2,
        True,
    )


def test_rejected_rows_have_no_label(made, cli):
    folder, _ = made
    Z = np.load(folder / "rows.npy")
    y = np.repeat(["cat", "dog"], 40)
    head = fedran.load(folder / "head.fedran", fedran.Head)
    H = feature_map(head.fingerprint)(Z)
    files = (str(folder / "head.fedran"), str(folder / "rows.npy"))
    code, _, err = cli("predict", *files, "--reject", "0.1")
    assert (code, "no calibration" in err) == (2, True)
    wrong = np.where(np.arange(80) % 2, y, y[::-1])
    head = head.calibrate(H, wrong)
    fedran.save(head, folder / "head.fedran")
    target = folder / "labels.csv"
    code, out, _ = cli("predict", *files, "--reject", "0.3", "--out", str(target))
    expected = head.predict(H, reject=0.3)
    unknown = sum(label is None for label in expected)
    assert unknown > 0
    assert (code, f'80 labels in {target}, "don\'t know" for {unknown} of them,' in out) == (
        0,
        True,
    )
    found = table(target.read_text())
    assert [line["label"] for line in found] == ["" if v is None else v for v in expected]
    assert [line["row"] for line in found] == [str(i) for i in range(80)]
    assert [line["dont_know"] for line in found] == ["yes" * (v is None) for v in expected]


def test_parquet_files_are_read_or_the_extra_is_named(made, cli, monkeypatch):
    folder, labels = made
    path = folder / "rows.parquet"
    path.write_bytes(b"nothing")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        code, _, err = cli("predict", str(folder / "head.fedran"), str(path))
    assert (code, "install fedran's extra 'parquet'" in err) == (2, True)
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    code, _, err = cli("predict", str(folder / "head.fedran"), str(path))
    assert (code, "expected a Parquet file" in err) == (2, True)
    columns = {f"c{i}": column for i, column in enumerate(np.load(folder / "rows.npy").T)}
    parquet.write_table(pyarrow.table(columns), path)
    code, out, _ = cli("predict", str(folder / "head.fedran"), str(path))
    assert (code, out.splitlines()) == (0, labels)


def test_a_head_of_scaled_rows_needs_its_scaler(tmp_path, cli):
    rng = np.random.default_rng(0)
    y = np.repeat(["cat", "dog"], 30)
    X = rng.normal(size=(60, 3)) * [1, 100, 1] + 5 * (y == "dog")[:, None] + 40
    clf = fedran.FedRANClassifier(64, scaler=fedran.FederatedScaler()).fit(X, y)
    fedran.save(clf.head_, tmp_path / "head.fedran")
    np.save(tmp_path / "rows.npy", X)
    (tmp_path / "own.json").write_text(clf.scaler_.to_json())
    (tmp_path / "other.json").write_text(fedran.FederatedScaler().fit(X[:9]).to_json())
    files = (str(tmp_path / "head.fedran"), str(tmp_path / "rows.npy"))
    code, out, err = cli("predict", *files, "--scaler", str(tmp_path / "own.json"))
    assert (code, err) == (0, "")
    assert out.splitlines() == clf.predict(X).tolist()
    for more, words in [
        ((), "the scaler that its rows were scaled with, got none; name its JSON file"),
        (("--scaler", str(tmp_path / "other.json")), "expected that of the head"),
        (("--scaler", str(tmp_path / "none.json")), "no such file"),
        (("--scaler", files[1]), "expected a scaler as JSON"),
    ]:
        code, out, err = cli("predict", *files, *more)
        assert (code, out, words in err, err.count("\n")) == (2, "", True, 1), err


def test_rows_that_were_scaled_before_are_told(tmp_path, cli):
    X = np.random.default_rng(0).normal(50.0, 2.0, (60, 3))
    clf = fedran.FedRANClassifier(64, scaler=fedran.FederatedScaler()).fit(X, X[:, 0] > 50)
    fedran.save(clf.head_, tmp_path / "head.fedran")
    (tmp_path / "scaler.json").write_text(clf.scaler_.to_json())
    for rows, told in (
        (X, ""),
        (clf.scaler_.transform(X), "in 3 of 3 columns, half of the values"),
    ):
        np.save(tmp_path / "rows.npy", rows)
        files = (str(tmp_path / "head.fedran"), str(tmp_path / "rows.npy"))
        code, out, err = cli("predict", *files, "--scaler", str(tmp_path / "scaler.json"))
        assert (code, len(out.splitlines()), told in err, bool(told)) == (0, 60, True, bool(err))


def test_columns_are_put_in_the_order_of_the_scaler(tmp_path, cli):
    rng = np.random.default_rng(0)
    y = np.repeat(["cat", "dog"], 30)
    X = rng.normal(size=(60, 3)) * [1, 100, 1] + [0, 0, 5] * (y == "dog")[:, None]
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    clf = fedran.FedRANClassifier(64, scaler=fedran.FederatedScaler()).fit(frame, y)
    fedran.save(clf.head_, tmp_path / "head.fedran")
    (tmp_path / "scaler.json").write_text(clf.scaler_.to_json())

    def predicted(frame, *options, **how):
        frame.to_csv(tmp_path / "rows.csv", **{"index": False, **how})
        files = (str(tmp_path / "head.fedran"), str(tmp_path / "rows.csv"))
        code, out, err = cli("predict", *files, "--scaler", str(tmp_path / "scaler.json"), *options)
        return (out.splitlines() if code == 0 else code), err

    expected = clf.predict(frame).tolist()
    assert predicted(frame) == (expected, "")
    assert predicted(frame[["c", "a", "b"]]) == (expected, "")
    assert predicted(frame, header=False) == (expected, "")
    lines, _ = predicted(frame[["b", "c", "a"]], "--id", "", index=True)
    found = table("\n".join(lines))
    assert [line["label"] for line in found] == expected
    assert [line["id"] for line in found] == [str(i) for i in range(60)]
    for changed, how, words in [
        (frame[["a", "b"]], {}, "the 3 columns of the scaler, got no 'c'; rename"),
        (frame.rename(columns={"a": "A"}), {}, "got no 'a' and the unknown 'A'"),
        (frame.assign(d=1.0), {}, "got the unknown 'd'"),
        (frame[["c", "b", "a", "a"]], {}, "got the unknown 'a' and several 'a'"),
        (frame, {"index": True}, "got a column '', as pandas writes for the numbers of rows"),
    ]:
        code, err = predicted(changed, **how)
        assert (code, words in err, err.count("\n")) == (2, True, 1), err


def test_a_head_of_listed_columns_needs_their_order(tmp_path, cli):
    messages = pytest.importorskip("fedran.federation.protocol.messages")
    offer = messages.Offer("trial", "may", 3, "cosine", "x", 20_000, columns=("b", "a", "c"))
    rng = np.random.default_rng(0)
    y = np.repeat(["cat", "dog"], 30)
    X = rng.normal(size=(60, 3)) + [0, 0, 5] * (y == "dog")[:, None]
    phi = offer.features()
    agg = fedran.Aggregator(fingerprint=phi.fingerprint)
    agg.absorb(fedran.condense(phi(X), y, fingerprint=phi.fingerprint), client="a", task="t")
    fedran.save(agg.solve(), tmp_path / "head.fedran")
    expected = agg.solve().predict(phi(X)).tolist()
    (tmp_path / "offer.json").write_text(json.dumps(offer.fields()))
    (tmp_path / "other.json").write_text(json.dumps({**offer.fields(), "columns": ["a", "c", "b"]}))
    frame = pandas.DataFrame(X, columns=["b", "a", "c"])
    files = (str(tmp_path / "head.fedran"), str(tmp_path / "rows.csv"))
    listed, other = (("--offer", str(tmp_path / f"{name}.json")) for name in ("offer", "other"))

    def predicted(names, *options):
        frame[names].to_csv(files[1], index=False)
        code, out, err = cli("predict", *files, *options)
        return out.splitlines() if code == 0 else err

    assert predicted(["b", "a", "c"]) == predicted(["b", "a", "c"], *listed) == expected
    assert predicted(["c", "a", "b"], *listed) == expected
    words = (
        "expected the columns of the head in their order, got others, or another order, from 'c'"
    )
    assert f"{words}; order them as in training" in predicted(["c", "a", "b"])
    assert "got no 'b'" in predicted(["a", "c"], *listed)
    assert "other.json: expected the columns of the head, got others" in predicted(["a"], *other)
    unnamed = replace(offer, columns=())  # a federation that lists no columns
    (tmp_path / "offer.json").write_text(json.dumps(unnamed.fields()))
    assert "offer.json: expected the columns of the head" in predicted(["a", "b", "c"], *listed)
    head = replace(agg.solve(), fingerprint=unnamed.features().fingerprint)
    fedran.save(head, tmp_path / "head.fedran")
    assert len(predicted(["b", "a", "c"], *listed)) == len(expected)


def test_a_head_that_was_fitted_on_names_refuses_another_order(tmp_path, cli):
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.normal(size=(40, 3)), columns=["b", "a", "c"])
    y = np.where(frame["a"] > 0, "cat", "dog")
    clf = fedran.FedRANClassifier(64).fit(frame, y)
    fedran.save(clf.head_, tmp_path / "head.fedran")
    files = (str(tmp_path / "head.fedran"), str(tmp_path / "rows.csv"))
    frame.to_csv(files[1], index=False)
    code, out, _ = cli("predict", *files)
    assert (code, out.splitlines()) == (0, clf.predict(frame).tolist())
    frame[["c", "b", "a"]].to_csv(files[1], index=False)
    code, out, err = cli("predict", *files)
    assert (code, out, "order them as in training" in err) == (2, "", True)


def test_a_result_that_cannot_be_written_is_one_sentence_and_changes_no_file(made, cli):
    folder, _ = made
    files = (str(folder / "head.fedran"), str(folder / "rows.npy"))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for target, words in [
        (folder / "none" / "labels.csv", f"the folder {folder / 'none'} does not exist"),
        ("/proc/labels.csv", "fedran: /proc/labels.csv: No such file or directory"),
        (folder, f"fedran: {folder}: Is a directory"),
        (folder / "rows.npy", "rows.npy is one of the files to read; name another file"),
        (folder / "head.fedran", "head.fedran is one of the files to read"),
    ]:
        code, out, err = cli("predict", *files, "--out", str(target))
        assert (code, out, words in err, err.count("\n")) == (2, "", True, 1), err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_large_csv_file_is_not_held_as_text(tmp_path):
    Z = np.random.default_rng(0).random((1000, 200))
    np.savetxt(tmp_path / "rows.csv", Z, delimiter=",", fmt="%.17g")
    tracemalloc.start()
    try:
        found = read_table(tmp_path / "rows.csv", []).X
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found, Z)
    assert peak < 3 * Z.nbytes
