"""Descriptions of saved files are complete and safe to print."""

import json

import numpy as np
import pytest

import fedran
from fedran.wire.describe import describe
from helpers.wire.golden import golden_aggregator
from helpers.wire.messages import fixture, summary


def described(name: str, tmp_path) -> dict:
    path = tmp_path / name
    path.write_bytes(fixture(name))
    found = describe(path)
    json.dumps(found.fields, allow_nan=False)
    return {"title": found.title, **found.sections}


@pytest.mark.parametrize(("name", "width"), [("mixed", "7.00 bits"), ("float32", "float32")])
def test_an_upload_is_described(name, width, tmp_path):
    said = described(name, tmp_path)
    assert "upload" in said["title"]
    assert said["file"]["bytes"] == len(fixture(name))
    assert said["file"]["sha256"] == fedran.decode(fixture(name)).digest
    assert said["content"]["precision"].startswith(name)
    assert width in said["content"]["precision"]
    assert said["content"]["classes"] == "4: -3 (4), 12 (4), ant (1), été (1)"
    assert (said["content"]["rank"], said["content"]["rows"]) == (3, 11)
    assert said["content"]["labelled rows"] == 10
    assert said["file"]["format version"] == "2.0"
    assert said["accounts"]["cut"].startswith("64 (")
    assert said["fingerprint"]["backbone"] == "golden"


@pytest.mark.parametrize(
    ("name", "center"),
    [
        ("float32", "class: rows minus class means"),
        ("uncentred", "none: the rows themselves"),
    ],
)
def test_the_description_states_the_center(name, center, tmp_path):
    assert described(name, tmp_path)["content"]["center"] == center


def test_an_exact_sum_has_no_center(tmp_path):
    assert "center" not in described("aggregator_gram", tmp_path)["content"]


def test_a_head_is_described(tmp_path):
    said = described("head", tmp_path)
    assert said["content"]["classes"] == "3: 5, ant, été"
    assert said["diagnosis"]["lam"] == 2.5
    assert said["diagnosis"]["route"] == "by hand"


@pytest.mark.parametrize("form", ["stack", "gram"])
def test_an_aggregator_is_described(form, tmp_path):
    said = described(f"aggregator_{form}", tmp_path)
    agg = golden_aggregator(form)
    assert said["content"]["uploads"] == len(agg.absorbed)
    assert said["content"]["tasks"] == ("1: may" if form == "stack" else "2: june.2, may")
    assert said["accounts"]["eps_G (spectral)"] == agg.accounts.eps_G


def test_an_empty_upload_and_one_with_many_classes_are_described(tmp_path):
    fedran.save(fedran.summarize(np.zeros((0, 4)), []), tmp_path / "empty")
    said = describe(tmp_path / "empty").sections
    assert said["content"]["classes"] == "none"
    assert said["content"]["precision"] == "mixed"
    assert "none" in said["fingerprint"]["fingerprint"]
    fedran.save(summary(n=20, labels=tuple(range(20))), tmp_path / "many")
    assert describe(tmp_path / "many").sections["content"]["classes"].endswith("and 12 more")


def test_foreign_text_is_escaped(tmp_path):
    evil = "\x1b[31m\nboo"
    print_ = fedran.Fingerprint.of(backbone=evil)
    fedran.save(fedran.summarize(np.eye(2), [evil, "x"], fingerprint=print_), tmp_path / "a")
    said = describe(tmp_path / "a").sections
    assert said["content"]["classes"].isprintable()
    assert said["fingerprint"]["backbone"].isprintable()


def test_a_damaged_file_is_refused_by_name(tmp_path):
    (tmp_path / "cut.bin").write_bytes(fixture("mixed")[:-1])
    with pytest.raises(fedran.Refused, match=r"cut\.bin"):
        describe(tmp_path / "cut.bin")


def test_calibration_and_novelty_are_described(tmp_path):
    y = np.arange(60) % 6
    clf = fedran.FedRANClassifier(out_features=32).fit(np.eye(6)[y], y)
    clf.novelty(np.eye(6))
    fedran.save(clf.head_, tmp_path / "head")
    said = describe(tmp_path / "head").sections["content"]
    assert said["novelty"].startswith("from ")
    assert said["calibration"] == "from 60 rows"
    assert said["temperature"] == clf.head_.calibration.temperature
    assert described("head", tmp_path)["content"]["calibration"].startswith("none")
