"""Findings about a task's rows before anything is sent."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.core.errors import Refused
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.messages import PROTOCOL, Offer
from fedran.federation.site.check import check_labels, check_task
from fedran.federation.site.settings import SitePaths
from fedran.federation.site.upload import Site
from helpers.made_site import OFFER, rows


@pytest.fixture
def paths(tmp_path):
    folder = tmp_path / "site"
    (folder / "data").mkdir(parents=True)
    (folder / "state").mkdir()
    SiteKey.generate().save(folder / "site.key")
    (folder / "site.toml").write_text('federation = "trial"\nclient = "site-1"\nfolder = "data"\n')
    return SitePaths(folder)


def findings(paths, X, y, offer=OFFER, task="may"):
    np.savez(paths.folder / "data" / f"{task}.npz", features=X, labels=y)
    return {(f.level, f.text) for f in check_task(paths, task, offer)}


def texts(found, level):
    return " ".join(sorted(text for how, text in found if how == level))


def test_good_rows_have_no_errors_and_no_warnings(paths):
    X, y = rows()
    found = findings(paths, X - 0.5, np.array(y))
    assert {level for level, _ in found} == {"note"}
    assert "Task may: 60 rows, features 6 (float64), 3 classes." in texts(found, "note")


def test_the_column_of_labels_is_named_in_the_settings(paths):
    X, y = rows()
    lines = [",".join([*map(repr, x), f"c{label}"]) for x, label in zip(X.tolist(), y, strict=True)]
    (paths.folder / "data" / "may.csv").write_text("\n".join(["a,b,c,d,e,f,kind", *lines]))
    (found,) = check_task(paths, "may", OFFER)
    assert found.text == (
        "may.csv: expected one column label, got the columns a, b, c, d, e, f, kind; "
        'set label_column = "kind" in site.toml'
    )
    with paths.settings_file.open("a") as file:
        file.write('label_column = "kind"\n')
    assert {finding.level for finding in check_task(paths, "may", OFFER)} == {"note"}


@pytest.mark.parametrize(
    ("change", "changes", "words"),
    [
        (lambda X: X[:, :5], {}, "The server expects 6 columns, the rows have 5."),
        (lambda X: np.where(X[4, 2] == X, np.nan, X), {}, "1 of 60 rows contain NaN or infinity"),
        (lambda X: X - 0.5, {"kind": "hellinger"}, "of the values are negative, but the server"),
        (lambda X: X.astype(str), {}, "Features must be numbers, got the type <U"),
    ],
)
def test_rows_that_would_be_refused_are_errors(change, changes, words, paths):
    X, y = rows()
    found = findings(paths, change(X), np.array(y), replace(OFFER, **changes))
    assert words in texts(found, "error")


def test_rows_of_another_scale_than_the_federation_are_a_warning(paths):
    X, y = rows()
    usual = float(np.mean(np.sum(np.asarray(OFFER.features()(X)) ** 2, axis=1)))
    offer = replace(OFFER, row_energy=usual)
    assert texts(findings(paths, X, np.array(y), offer), "warning") == ""
    found = texts(findings(paths, 255 * X, np.array(y), offer), "warning")
    assert "times the energy of other sites' rows" in found
    assert "6.5e+04" in found


def test_swapped_labels_are_noticed_with_the_newest_head(paths):
    X, y = rows(300)
    phi = OFFER.features()
    server = fedran.Aggregator(phi.out_features, fingerprint=phi.fingerprint)
    summary = fedran.summarize(phi(X), y, rank=40, fingerprint=phi.fingerprint)
    server.absorb(summary, client="a", task="t")
    fedran.save(server.solve(), paths.folder / "state" / "head.fedran")
    (paths.folder / "state" / "offer.json").write_text(json.dumps(OFFER.fields()))
    good = findings(paths, X, np.array(y), None)
    assert texts(good, "warning") == ""
    assert "recognises 9" in texts(good, "note") or "recognises 100" in texts(good, "note")
    swapped = findings(paths, X, (np.array(y) + 1) % 3, None)
    assert "Labels may be swapped" in texts(swapped, "warning")


def test_without_an_offer_the_rows_themselves_are_checked(paths):
    X, y = rows()
    X[3, 2] = np.inf
    found = findings(paths, X, np.array(y), None)
    assert "the first is row 3" in texts(found, "error")
    assert "no offer of a server yet" in texts(found, "note")
    assert check_task(paths, "june")[0].text.startswith("june.npz: no rows for task june yet")


def test_labels_are_compared_with_the_list_of_the_federation():
    listed = (0, 1, 2)
    labels = [0] * 5 + ["1"] * 5 + ["two"] * 5
    warning, error = check_labels(labels, 5, listed, None)
    assert (warning.level, error.level) == ("warning", "error")
    assert "1 and '1'" in warning.text
    assert "does not accept the labels '1', 'two'; it lists 0, 1, 2." in error.text
    assert list(check_labels([0] * 5 + [1] * 5, 5, listed, None)) == []


def test_variants_and_rare_labels_are_named():
    y = ["Cat"] * 5 + ["cat "] * 5 + ["dog"] * 2 + [None]
    found = " ".join(f.text for f in list(check_labels(y, 5, (), None)))
    assert "Withheld, with fewer than 5 rows each: 'dog'." in found
    assert "'Cat' and 'cat ' may be meant as one class" in found
    assert list(check_labels([None], 5, (), None))[-1].text == "No row has a label."
    assert "nothing would be sent" in list(check_labels([1], 5, (), None))[-1].text


def test_rows_without_a_label_are_counted_with_their_pseudo_labels(paths):
    X, y = rows(90)
    half = np.array([str(v) if i % 2 else "" for i, v in enumerate(y)])
    told = texts(findings(paths, X, half), "warning")
    sent = Site.load(paths.settings_file)
    sent.prepare(OFFER)
    given = sent.outbox.note("may")["pseudo_labelled"]
    assert 0 < given <= 45
    assert f"45 of 90 rows have no label; {given} of them get a pseudo-label" in told
    assert 'pseudo_labels = "none" in site.toml' in told
    lone = np.where(half == half[1], half, "")  # the others may have another class
    assert "; 0 of them get a pseudo-label" in texts(findings(paths, X, lone), "warning")
    unknown = texts(findings(paths, X, half, None), "warning")
    assert "45 of 90 rows have no label; some may get a pseudo-label" in unknown
    with paths.settings_file.open("a") as file:
        file.write('pseudo_labels = "none"\n')
    found = findings(paths, X, half)
    assert "45 of 90 rows have no label and are left out." in texts(found, "note")
    assert "pseudo-label" not in texts(found, "warning")


def test_an_offer_carries_class_list_scale_and_protocol():
    offer = replace(OFFER, classes=(1, "1", "cat"), row_energy=2.5)
    again = Offer.read(json.loads(json.dumps(offer.fields())))
    assert again == offer
    older = {k: v for k, v in offer.fields().items() if k not in ("classes", "protocol")}
    assert Offer.read(older).classes == ()
    for wrong in ([1.5], [True], ["x" * 300], "cat", [None]):
        with pytest.raises(Refused, match="classes"):
            Offer.read({**offer.fields(), "classes": wrong})


@pytest.mark.parametrize("wrong", [PROTOCOL + 1, 10**9])
def test_an_offer_of_a_later_protocol_is_refused_with_a_remedy(wrong):
    """Whatever else such an offer contains: its fields may have another meaning."""
    with pytest.raises(Refused, match=r"expected version 1 or earlier.*install the version"):
        Offer.read({"protocol": wrong, "task": {"new": "meaning"}})


def test_a_backbone_that_is_missing_damaged_or_another_one_is_an_error(paths):
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    from fedran.backbones.vit import vit_backbone
    from helpers.tiny_vit import tiny_vit

    images = np.zeros((6, 8, 8, 3), np.uint8)
    np.savez(paths.folder / "data" / "may.npz", images=images, labels=["a"] * 6)
    offer = replace(OFFER, in_features=16, source=vit_backbone(tiny_vit(), "cpu").source)
    found = check_task(paths, "may", offer)
    assert found[-1].text == "The rows are images, but site.toml names no backbone."
    with paths.settings_file.open("a") as file:
        file.write('backbone = "vit:model.safetensors"\n')
    weights = paths.folder / "model.safetensors"
    wanted = {
        Path(tiny_vit()).read_bytes(): "Images are prepared with bicubic 8x8",
        Path(tiny_vit(seed=3)).read_bytes(): "source: expected features made in the same way",
        Path(tiny_vit()).read_bytes()[:-9]: "model.safetensors: expected a .safetensors file",
    }
    for content, words in wanted.items():
        weights.write_bytes(content)
        (*_, last) = check_task(paths, "may", offer)
        assert words in last.text
        assert last.level == ("note" if words.startswith("Images") else "error")
    weights.unlink()
    assert "does not exist" in check_task(paths, "may")[-1].text


@pytest.mark.parametrize("copies", [1, 30])
def test_a_summary_that_is_larger_than_its_rows_is_noted(paths, copies):
    X, y = rows()
    found = findings(paths, np.tile(X, (copies, 1)), np.tile(y, copies))
    assert ("of uploads describe 1.4 KiB of rows" in texts(found, "note")) == (copies == 1)
    mixture = findings(paths, X, np.array(y), replace(OFFER, message="mixture"))
    assert "uploads describe" not in texts(mixture, "note")


def test_a_budget_without_room_for_the_class_sums_is_an_error(paths):
    X, y = rows()
    found = findings(paths, X, np.array(y), replace(OFFER, budget_bytes=1024))
    assert "budget_bytes: expected room for the sums of 3 classes" in texts(found, "error")


def test_no_class_is_withheld_under_differential_privacy(paths):
    X, _ = rows(6)
    names = np.array([f"c{i}" for i in range(6)])
    assert "No class has 5 rows" in texts(findings(paths, X, names, None), "error")
    listed = {"classes": tuple(names.tolist()), "out_features": OFFER.in_features}
    private = replace(OFFER, privacy="dp", **listed)
    assert "No class has" not in texts(findings(paths, X, names, private), "error")
    text = paths.settings_file.read_text()
    paths.settings_file.write_text(f'{text}\nprivacy = "dp"\n')
    assert "No class has" not in texts(findings(paths, X, names, None), "error")
