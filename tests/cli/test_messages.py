"""From images, texts or a table to labels: features, condense or summarize, solve, predict."""

import csv

import numpy as np
import pandas
import pytest
from sklearn.datasets import load_iris

import fedran
from helpers.image_files import dicom, encode
from helpers.one_line_error import refused
from helpers.tiny_language_model import write_language_model

pytest.importorskip("PIL")
pytest.importorskip("onnxruntime")


@pytest.fixture
def run(cli, monkeypatch, tmp_path):
    """``fedran ...`` in a folder of its own; returns stdout. The exit code must be 0."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def run(line):
        code, out, err = cli(*line.split())
        assert code == 0, err
        return out

    return run


def draw(folder, colours, n=5):
    """Images of noisy colours in folders."""
    rng = np.random.default_rng(len(str(folder)))
    for name, colour in colours.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(n):
            noise = rng.integers(-40, 40, (8, 8, 3))
            pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            (folder / name / f"{name or 'new'}{i}.png").write_bytes(encode(pixels))


COLOURS = {"red": (220, 30, 30), "green": (30, 220, 30), "blue": (30, 30, 220)}


def table(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def test_four_commands_lead_from_folders_of_images_to_labels(run, cli, model, tmp_path):
    draw(tmp_path / "a", {"red": COLOURS["red"], "green": COLOURS["green"]})
    draw(tmp_path / "b", {"green": COLOURS["green"], "blue": COLOURS["blue"]})
    draw(tmp_path / "new", {"": COLOURS["blue"]}, 3)
    for site in ("a", "b"):
        run(f"features {site} --backbone {model}")
        run(f"condense {site}-mean.npz --out {site}.fedran")
    assert "3 classes from 20 rows, 2 of 2 messages" in run(
        "solve a.fedran b.fedran --out h.fedran"
    )
    run(f"predict h.fedran new --backbone {model} --out labels.csv")
    found = table("labels.csv")
    assert [line["file"] for line in found] == ["new0.png", "new1.png", "new2.png"]
    assert {line["label"] for line in found} == {"blue"}
    assert all(float(line["probability"]) > 0.5 for line in found)
    # The head does not depend on the order of messages; one that is given twice counts once.
    run("solve b.fedran a.fedran b.fedran --out again.fedran")
    one, other = (fedran.load(f"{name}.fedran", fedran.Head) for name in ("h", "again"))
    assert one.classes == other.classes
    assert other.diagnosis.n_rows == 20
    # Features of the same images, without labels, may be made first.
    run(f"features new --backbone {model}")
    run("predict h.fedran new-mean.npz --out more.csv")
    assert table("more.csv") == found
    refused(cli("condense", "new-mean.npz"), "new-mean.npz: expected labels, got none")
    refused(cli("condense", "a-mean.npz", "--out", "a.fedran"), "a.fedran exists", "--overwrite")
    refused(cli("predict", "h.fedran", "new"), "the backbone of the head, onnx", "--backbone")
    refused(cli("solve", "h.fedran", "--out", "x.fedran"), "got a head, which is solved already")
    run("summarize a-mean.npz --out sum.fedran --out-features 64 --rank 4")
    refused(cli("solve", "a.fedran", "sum.fedran", "--out", "x.fedran"), "expected points, got a s")
    assert "no probabilities" in run("solve sum.fedran --out x.fedran")


def test_features_of_another_backbone_are_refused_unless_forced(run, cli, model, tmp_path):
    draw(tmp_path / "a", COLOURS)
    run(f"features a --backbone {model}")
    run("condense a-mean.npz")
    run("solve a-mean.fedran --out h.fedran")
    run(f"features a --backbone {model} --mean 0,0,0 --out other.npz")
    refused(cli("predict", "h.fedran", "other.npz"), "other.npz: expected", "preprocessing is")
    assert len(run("predict h.fedran other.npz --force").splitlines()) == 15
    refused(cli("predict", "h.fedran", "a", "--backbone", model, "--device", "x"), "device: expec")


def test_the_range_of_deep_images_is_part_of_what_features_mean(run, cli, model, tmp_path):
    (tmp_path / "ct").mkdir()
    for i in range(3):
        pixels = np.full((8, 8), 900 + 50 * i, np.uint16)
        window = {} if i else {"WindowCenter": "950", "WindowWidth": "200"}
        (tmp_path / "ct" / f"{i}.dcm").write_bytes(dicom(pixels, **window))
    refused_in = cli("features", "ct", "--backbone", model)
    assert (refused_in[0], "expected a window in the file" in refused_in[2]) == (2, True)
    run(f"features ct --backbone {model} --range 800,1100")
    run(f"features ct --backbone {model} --range 800,1200 --out wide.npz")
    with np.load("ct-mean.npz") as one, np.load("wide.npz") as other:
        assert (str(one["range"]), str(other["range"])) == ("800,1100", "800,1200")
        assert np.ptp(one["features"]) > np.ptp(other["features"]) > 0
        labelled = {**one, "labels": np.array(["low", "low", "high"])}
    np.savez("labelled.npz", **labelled)
    run("condense labelled.npz")
    run("solve labelled.fedran --out h.fedran")
    refused(cli("predict", "h.fedran", "wide.npz"), 'range is "800,1200" here and "800,1100" there')
    # The range of the head is used for new images.
    assert run(f"predict h.fedran ct --backbone {model}").split() == ["low", "low", "high"]
    for wrong in ("5", "5,5", "a,b"):
        refused(cli("features", "ct", "--range", wrong), "--range: expected")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_becomes_a_message_and_columns_may_have_any_order(run, cli, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    X, y = load_iris(return_X_y=True, as_frame=True)
    frame = X.assign(diagnosis=np.array(["a", "b", "c"])[y])

    def write(rows, name):
        rows.to_csv(name, index=False) if suffix == "csv" else rows.to_parquet(name)

    write(frame[::2], f"visits.{suffix}")
    write(frame.iloc[1::2, ::-1], f"new.{suffix}")
    refused(cli("condense", f"visits.{suffix}"), 'with --label "diagnosis"')
    run(f"condense visits.{suffix} --label diagnosis --group-size 2 --min-group 2")
    run("solve visits.fedran --out h.fedran")
    out = run(f"predict h.fedran new.{suffix} --label diagnosis --out labels.csv")
    assert "of the 75 known labels" in out
    right = np.mean([line["label"] for line in table("labels.csv")] == frame.diagnosis[1::2])
    assert right > 0.9
    scaler = fedran.FederatedScaler().fit(X)
    with open("scaler.json", "w") as file:
        file.write(scaler.to_json())
    run(f"condense visits.{suffix} --label diagnosis --scaler scaler.json --out scaled.fedran")
    run("solve scaled.fedran --out h2.fedran")
    run(f"predict h2.fedran new.{suffix} --label diagnosis --scaler scaler.json --out scaled.csv")
    right = np.mean([line["label"] for line in table("scaled.csv")] == frame.diagnosis[1::2])
    assert right > 0.9
    # The leak meter orders and scales columns in the same way.
    rows = f"visits.{suffix}", "--reference", f"new.{suffix}", "--label", "diagnosis", "--json"
    assert cli("leak", "visits.fedran", *rows)[0] == 1
    assert cli("leak", "scaled.fedran", *rows, "--scaler", "scaler.json")[0] == 1
    refused(cli("leak", "scaled.fedran", *rows), "scaled.fedran: head: expected the scaler")


def test_missing_values_are_refused_with_advice(run, cli):
    pandas.DataFrame({"a": [1.0, None], "label": ["x", "y"]}).to_csv("hole.csv", index=False)
    run("--version")
    refused(cli("condense", "hole.csv"), "line 3: expected numbers in column a", "impute")
    np.savez("hole.npz", X=[[1.0], [np.nan]], y=["x", "y"])
    refused(cli("condense", "hole.npz"), "hole.npz: X: expected finite values", "impute")


def test_texts_take_the_same_way(run, cli, tmp_path):
    pytest.importorskip("transformers")
    write_language_model(tmp_path / "language")
    words = {"weather": "rain snow sun", "bank": "money bill account"}
    with open("mails.csv", "w") as file:
        print("body,intent", file=file)
        for intent, said in words.items():
            for word in said.split() * 3:
                print(f"the {word},{intent}", file=file)
        print("the rain,", file=file)
    refused(cli("features", "mails.csv"), 'with --column "body"')
    refused(cli("features", "mails.csv", "--column", "body"), "expected hf:FOLDER for texts")
    run("features mails.csv --column body --label intent --backbone language")
    run("condense mails-language.npz --out m.fedran")
    run("solve m.fedran --out h.fedran")
    with open("new.txt", "w") as file:
        file.write("the snow\nthe bill\n")
    assert run("predict h.fedran new.txt --backbone language").split() == ["weather", "bank"]
    options = "--column body --label intent --id body --backbone hf:language"
    run(f"predict h.fedran mails.csv {options} --out l.csv")
    assert table("l.csv")[-1]["id"] == "the rain"
    assert [line["label"] for line in table("l.csv")] == [
        *["weather"] * 9,
        *["bank"] * 9,
        "weather",
    ]
    refused(cli("predict", "h.fedran", "new.txt"), "the backbone of the head, hf:bert/text")


def test_completion_knows_the_options_of_a_command(monkeypatch, cli, capsys):
    monkeypatch.setenv("_FEDRAN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "fedran condense --group")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        cli()
    assert "--group-size" in capsys.readouterr().out
