"""A site's side: where rows come from, what is withheld, what lies in the outbox."""

import logging
import sys

import numpy as np
import pytest

pytest.importorskip("cryptography")

from made_federation import RULES

import fedran
from fedran.core.errors import Refused
from fedran.federation.envelope import open_envelope
from fedran.federation.identity import SiteKey
from fedran.federation.keeper import Keeper
from fedran.federation.offer import Offer
from fedran.federation.outbox import Outbox
from fedran.federation.receipt import Receipt
from fedran.federation.roster import Roster
from fedran.federation.site import Site
from fedran.federation.source import FolderSource, FunctionSource, TaskData, make_source

OFFER = Offer("trial", "may", 6, 48, 0, "test", 20_000)


def rows(n=60, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    return rng.random((n, 6)) + y[:, None] * np.eye(6)[:classes][y], y.tolist()


def site_of(tmp_path, X, y, **changes):
    fields = {"key": SiteKey.generate(), "source": lambda task: TaskData(X, list(y))}
    return Site("site-1", "trial", outbox=Outbox(tmp_path / "outbox"), **(fields | changes))


def summary_of(blob):
    return fedran.decode(open_envelope(blob).upload)


def test_from_rows_to_a_head_and_back(tmp_path):
    X, y = rows()
    site = site_of(tmp_path, X, y)
    keeper = Keeper(tmp_path / "server", RULES, Roster({"site-1": site.key.public}))
    receipt = keeper.receive(site.prepare(OFFER))
    assert receipt.outcome == "accepted"
    site.outbox.settle(receipt)
    assert site.outbox.pending() == []
    assert np.mean(keeper.solve().predict(OFFER.features()(X)) == y) > 0.9
    keeper.close()


def test_an_upload_is_made_once(tmp_path):
    X, y = rows()
    calls = []

    def source(task):
        calls.append(task)
        return TaskData(X + 0.01 * len(calls), y)

    site = site_of(tmp_path, X, y, source=source)
    first = site.prepare(OFFER)
    assert site.prepare(OFFER) == first
    again = site_of(tmp_path, X, y, source=source, key=site.key)
    assert again.prepare(OFFER) == first
    assert calls == ["may"]
    assert again.outbox.pending() == ["may"]


def test_a_refused_upload_stays_pending(tmp_path):
    site = site_of(tmp_path, *rows())
    site.prepare(OFFER)
    site.outbox.settle(Receipt("refused", "site-1", "may", "d", "no"))
    assert site.outbox.pending() == ["may"]
    assert site.outbox.receipt("may").reason == "no"


def test_the_rank_follows_from_the_budget(tmp_path):
    X, y = rows(200)
    ranks = []
    for n, budget in enumerate((2_000, 5_000, 20_000)):
        site = site_of(tmp_path / str(n), X, y)
        blob = site.prepare(Offer("trial", "may", 6, 48, 0, "test", budget))
        assert len(open_envelope(blob).upload) <= budget
        ranks.append(summary_of(blob).rank)
    assert ranks == sorted(ranks)
    assert ranks[0] < ranks[-1]


def test_rare_classes_are_withheld_and_said(tmp_path, caplog):
    X, y = rows(60, classes=2)
    y = ["rare" if i < 3 else str(v) for i, v in enumerate(y)]
    with caplog.at_level(logging.WARNING):
        summary = summary_of(site_of(tmp_path, X, y).prepare(OFFER))
    assert summary.classes == ("0", "1")
    assert summary.accounts.n_rows == 57
    assert "withheld 'rare' (3), fewer than 5 rows each" in caplog.text


def test_only_rare_classes_means_no_upload(tmp_path):
    X, _ = rows(8)
    site = site_of(tmp_path, X, ["a", "b", "c", "d"] * 2)
    with pytest.raises(Refused, match="a class with at least 5 labelled rows"):
        site.prepare(OFFER)
    assert site.outbox.pending() == []


def test_missing_labels_are_filled_in_or_left_out(tmp_path):
    X, y = rows(90)
    half = [v if i % 2 else None for i, v in enumerate(y)]
    filled = summary_of(site_of(tmp_path / "a", X, half).prepare(OFFER))
    plain = summary_of(site_of(tmp_path / "b", X, half, pseudo_labels="none").prepare(OFFER))
    assert plain.accounts.n_rows == 45
    assert filled.accounts.n_rows > 60


def test_images_need_a_backbone(tmp_path):
    images = np.zeros((10, 4, 4, 3), np.uint8)
    with pytest.raises(Refused, match="this site has no backbone"):
        site_of(tmp_path, images, [0, 1] * 5).prepare(OFFER)
    extract = lambda pictures: rows(len(pictures))[0]  # noqa: E731
    site = site_of(tmp_path, images, [0, 1] * 5, extract=extract)
    assert summary_of(site.prepare(OFFER)).accounts.n_rows == 10


def test_an_offer_of_another_federation_is_refused(tmp_path):
    with pytest.raises(Refused, match="federation: expected trial, got other"):
        site_of(tmp_path, *rows()).prepare(Offer("other", "may", 6, 48, 0, "test", 20_000))


def test_an_offer_survives_a_message_and_nothing_else_passes():
    assert Offer.read(OFFER.fields()) == OFFER
    for name, value in [
        ("task", "../etc"),
        ("out_features", 2**40),
        ("in_features", "6"),
        ("budget_bytes", -1),
        ("seed", -1),
        ("source", 3),
    ]:
        with pytest.raises(ValueError, match=name):
            Offer.read({**OFFER.fields(), name: value})


def test_a_folder_of_files(tmp_path):
    X, y = rows(12)
    labels = np.array([*map(str, y[:10]), "", ""])
    np.savez(tmp_path / "may.npz", features=X, labels=labels)
    data = FolderSource(tmp_path)("may")
    assert np.array_equal(data.X, X)
    assert data.y == [*map(str, y[:10]), None, None]
    with pytest.raises(FileNotFoundError, match="no rows for task june yet"):
        FolderSource(tmp_path)("june")
    np.savez(tmp_path / "bad.npz", rows=X)
    (tmp_path / "worse.npz").write_bytes(b"nonsense")
    np.savez(tmp_path / "pickled.npz", features=X, labels=np.array([{}] * 12, dtype=object))
    for name in ("bad", "worse", "pickled"):
        with pytest.raises(Refused, match=f"{name}.npz: expected"):
            FolderSource(tmp_path)(name)


@pytest.mark.parametrize("task", ["../secret", "a/b", "", "/etc/passwd", "a\0b"])
def test_a_task_cannot_leave_the_folder(task, tmp_path):
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "secret.npz", features=np.zeros((1, 2)), labels=[1])
    with pytest.raises(Refused, match="task: expected"):
        FolderSource(tmp_path / "data")(task)


def test_a_function_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "my_rows.py").write_text(
        "def load(task):\n    return [[1.0, 2.0]], [task]\n\n\nnumber = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = FunctionSource("my_rows:load")("may")
    assert (data.X.shape, data.y) == ((1, 2), ["may"])
    for wrong in ("my_rows", ":load", "my_rows:none", "no_such_module:f", "my_rows:number"):
        with pytest.raises(Refused, match="entry: expected"):
            FunctionSource(wrong)
    sys.modules.pop("my_rows", None)


def test_a_source_is_one_of_two(tmp_path):
    assert isinstance(make_source(folder=str(tmp_path)), FolderSource)
    for wrong in ({}, {"folder": "a", "entry": "b:c"}):
        with pytest.raises(Refused, match="either folder or entry"):
            make_source(**wrong)


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (np.zeros((2, 3, 4)), [0, 1], "rows: expected features"),
        (np.zeros((2, 4, 4, 3)), [0, 1], "rows: expected features"),
        (np.zeros((2, 3)), [0], "labels: expected 2, one a row"),
    ],
)
def test_rows_that_do_not_fit(X, y, words):
    with pytest.raises(Refused, match=words):
        TaskData(X, y)
