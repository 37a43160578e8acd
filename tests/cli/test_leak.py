"""``fedran leak``: figures, limits and exit codes."""

import csv
import json
import re

import numpy as np
import pytest

import fedran
from helpers.leaky_sites import head, points, summary, world


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leak")
    w = world((1, 20, 12))
    fedran.save(summary(w, 6), folder / "upload.fedran")
    fedran.save(points(w, 8, 5), folder / "points.fedran")
    fedran.save(head(points(w)), folder / "rows_of_head.fedran")
    np.savez(folder / "rows.npz", features=w.Z, labels=w.y)
    np.savez(folder / "other.npz", X=w.other, y=w.other_y)
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"f{i}" for i in range(w.Z.shape[1])), "label"])
        writer.writerows([*z, label] for z, label in zip(w.Z, w.y, strict=True))
    return folder


def seal_upload(folder):
    from fedran.federation.protocol.identity import SiteKey
    from fedran.federation.protocol.messages import seal

    upload = (folder / "upload.fedran").read_bytes()
    fields = {"federation": "f", "client": "a", "task": "t"}
    fingerprint = fedran.decode(upload).fingerprint.hash
    envelope = seal(upload, SiteKey.generate(), **fields, fingerprint=fingerprint)
    (folder / "upload.envelope").write_bytes(envelope.to_bytes())


def arguments(folder, message="upload.fedran", rows="rows.npz", *more):
    paths = [str(folder / name) for name in (message, rows, "other.npz")]
    return ["leak", *paths[:2], "--reference", paths[2], *more]


def test_a_leaky_message_has_exit_code_1_and_advice(made, cli):
    code, out, _ = cli(*arguments(made))
    assert code == 1
    assert "33 rows, 3 classes" in out
    assert re.search(r"OVER\s+rows that are alone\s+1 of 1\s+0", out)
    assert "min_class_count" in out.splitlines()[-1]
    assert max(map(len, out.splitlines()[:-1])) <= 80


@pytest.mark.parametrize(
    ("message", "rows"), [("upload.envelope", "rows.npz"), ("upload.fedran", "rows.csv")]
)
def test_envelopes_and_tables_give_the_same_figures(message, rows, made, cli):
    if message == "upload.envelope":
        seal_upload(made)
    expected = json.loads(cli(*arguments(made, "upload.fedran", "rows.npz", "--json"))[1])
    found = json.loads(cli(*arguments(made, message, rows, "--json"))[1])
    for mine, theirs in zip(found["numbers"], expected["numbers"], strict=True):
        assert mine["attack"] == theirs["attack"]
        assert mine["value"] == pytest.approx(theirs["value"], abs=0.02)
    assert found["numbers"][0]["tries"] == 1


def test_the_column_of_labels_may_have_another_name(made, cli):
    text = (made / "rows.csv").read_text()
    (made / "named.csv").write_text(text.replace("label", "kind", 1))
    code, out, err = cli(*arguments(made, "upload.fedran", "named.csv"))
    assert (code, out) == (2, "")
    assert "named.csv: expected one column label, got the columns f0, f1" in err
    assert 'name the column of labels with --label "COLUMN"' in err
    assert cli(*arguments(made, "upload.fedran", "named.csv", "--label", "kind"))[0] == 1


def test_points_and_heads_are_attacked_by_their_means(made, cli):
    code, out, _ = cli(*arguments(made, "points.fedran", "rows.npz", "--max-auc", "1"))
    assert code == 0
    assert "nearest mean" in out
    assert "rows in the factor" not in out
    code, out, _ = cli(*arguments(made, "rows_of_head.fedran", "rows.npz", "--max-auc", "1"))
    assert code == 1
    assert re.search(r"OVER\s+rows that are alone\s+3\d of 33", out)
    assert "landmarks" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("message", "rows", "words"),
    [
        ("none.fedran", "rows.npz", "none.fedran: no such file; expected saved points"),
        ("agg.fedran", "rows.npz", "points, a summary or a head, got the state of a server"),
        ("bare.fedran", "rows.npz", "expected a message that identifies its features"),
        ("upload.fedran", "none.npz", "no such file; expected rows with labels"),
        ("upload.fedran", "bare.npz", "bare.npz: expected labels, got none; sort images"),
        (
            "upload.fedran",
            "half.npz",
            "half.npz: expected an .npz file of plain arrays",
        ),
        ("upload.fedran", "wide.npz", "wide.npz: expected rows of"),
        (
            "upload.fedran",
            "other.npz",
            "other.npz: expected 1 rows of class 0, as the message says",
        ),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_exit_code_2(message, rows, words, made, cli):
    w = world()
    agg = fedran.Aggregator(160, fingerprint=w.phi.fingerprint)
    agg.absorb(summary(w, 6), client="a", task="t")
    fedran.save(agg, made / "agg.fedran")
    fedran.save(fedran.summarize(w.phi(w.Z), w.y, 6), made / "bare.fedran")
    np.savez(made / "bare.npz", features=w.Z)
    np.savez(made / "wide.npz", X=np.c_[w.Z, w.Z], y=w.y)
    (made / "half.npz").write_bytes((made / "wide.npz").read_bytes()[:-400])
    code, out, err = cli(*arguments(made, message, rows))
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.strip().splitlines()) == 1
