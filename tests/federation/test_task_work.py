"""A site's side: where rows come from, what is withheld, what lies in the outbox."""

import json
import logging
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.backbones.backbone import Backbone
from fedran.backbones.preprocessing import Preprocessing
from fedran.core.errors import Refused
from fedran.federation.protocol.identity import Roster, SiteKey
from fedran.federation.protocol.messages import Offer, open_envelope
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.protocol.rows import Rows
from fedran.federation.server.store import Store
from fedran.federation.site.outbox import Outbox
from fedran.federation.site.source import FolderSource, FunctionSource
from fedran.federation.site.upload import Site
from helpers.made_federation import RULES

OFFER = Offer("trial", "may", 6, 48, 0, "test", 20_000)


def rows(n=60, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    return rng.random((n, 6)) + y[:, None] * np.eye(6)[:classes][y], y.tolist()


def site_of(tmp_path, X, y, **changes):
    fields = {"key": SiteKey.generate(), "source": lambda task: Rows(X, list(y))}
    return Site("site-1", "trial", outbox=Outbox(tmp_path / "outbox"), **(fields | changes))


def summary_of(blob):
    return fedran.decode(open_envelope(blob).upload)


def test_from_rows_to_a_head_and_back(tmp_path):
    X, y = rows()
    site = site_of(tmp_path, X, y)
    store = Store(tmp_path / "server", RULES, Roster({"site-1": site.key.public}))
    receipt = store.receive(site.prepare(OFFER))
    assert receipt.outcome == "accepted"
    site.outbox.settle(receipt)
    assert site.outbox.pending() == []
    assert np.mean(store.solve().predict(OFFER.features()(X)) == y) > 0.9
    store.close()


def test_an_upload_is_made_once(tmp_path):
    X, y = rows()
    calls = []

    def source(task):
        calls.append(task)
        return Rows(X + 0.01 * len(calls), y)

    site = site_of(tmp_path, X, y, source=source)
    first = site.prepare(OFFER)
    assert site.prepare(OFFER) == first
    again = site_of(tmp_path, X, y, source=source, key=site.key)
    assert again.prepare(OFFER) == first
    assert calls == ["may"]
    assert again.outbox.pending() == ["may"]


def test_a_refused_upload_is_sent_again_with_the_next_offer(tmp_path):
    site = site_of(tmp_path, *rows())
    site.prepare(OFFER)
    reason = "client: expected a site"
    site.outbox.settle(Receipt(Code.UNKNOWN_CLIENT, "site-1", "may", "d", reason))
    assert site.outbox.pending() == ["may"]
    assert site.outbox.pending(refused=False) == []
    assert site.outbox.receipt("may").reason == "client: expected a site"


def test_once_the_server_has_another_upload_this_one_is_sent_no_more(tmp_path):
    key = SiteKey.generate()
    first, second = (
        site_of(tmp_path / name, *rows(seed=n), key=key) for n, name in enumerate("ab")
    )
    store = Store(tmp_path / "server", RULES, Roster({"site-1": key.public}))
    assert store.receive(first.prepare(OFFER)).outcome == "accepted"
    conflict = store.receive(second.prepare(OFFER))
    assert (conflict.outcome, conflict.code) == ("refused", Code.CONFLICT)
    second.outbox.settle(conflict)
    assert second.outbox.pending() == []
    store.close()


def test_a_damaged_upload_is_put_aside_and_made_again(tmp_path, caplog):
    site = site_of(tmp_path, *rows())
    whole = site.prepare(OFFER)
    site.prepare(replace(OFFER, task="june"))
    path = site.outbox.folder / "may.envelope"
    path.write_bytes(whole[: len(whole) // 2])
    assert site.outbox.lost() == ["may"]
    assert "task may: the upload in the outbox is damaged" in caplog.text
    assert (site.outbox.pending(), path.is_file()) == (["june"], False)
    assert path.with_suffix(".damaged").is_file()
    assert site.prepare(OFFER) == whole
    assert (site.outbox.lost(), site.outbox.pending()) == ([], ["june", "may"])
    path.write_bytes(site.outbox.envelope("june"))
    assert site.outbox.envelope("may") is None
    site.outbox.settle(Receipt(Code.ACCEPTED, "site-1", "may", "d"))
    assert site.outbox.lost() == []


def test_a_damaged_receipt_costs_one_more_sending(tmp_path):
    site = site_of(tmp_path, *rows())
    site.prepare(OFFER)
    site.outbox.settle(Receipt(Code.ACCEPTED, "site-1", "may", "d"))
    for torn in (b"", b"{", b"[]", b'{"outcome": "accepted"}', b"\xff"):
        (site.outbox.folder / "may.receipt").write_bytes(torn)
        assert site.outbox.pending() == ["may"]


def test_receipts_for_what_was_never_made_are_not_kept(tmp_path):
    outbox = Outbox(tmp_path)
    outbox.settle(Receipt(Code.ACCEPTED, "site-1", "may", "d"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Refused, match="task"):
        outbox.settle(Receipt(Code.ACCEPTED, "site-1", "../may", "d"))


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


def toy_backbone(**changes):
    """The mean colour, twice."""
    fields = {
        "name": "toy",
        "kind": "toy",
        "out_features": 6,
        "weights": "0" * 64,
        "preprocess": Preprocessing((4, 4), mean=(0, 0, 0), std=(255, 255, 255)),
        "forward": lambda x: np.tile(x.mean(axis=(2, 3)), 2),
    }
    return Backbone(**(fields | changes))


def images(n=30):
    y = np.arange(n) % 3
    bright = np.full((n, 4, 4, 3), 40) + 150 * np.eye(3)[y][:, None, None]
    return bright.astype(np.uint8), y.tolist()


def test_images_go_through_the_backbone_in_batches(tmp_path):
    sizes, pictures = [], images()

    def forward(x):
        sizes.append(len(x))
        return np.tile(x.mean(axis=(2, 3)), 2)

    network = toy_backbone(forward=forward)
    offer = replace(OFFER, source=network.source)
    site = site_of(tmp_path, *pictures, backbone=lambda: network)
    summary = summary_of(site.prepare(offer))
    assert sizes == [4] * 7 + [2]
    Z = np.tile(pictures[0].mean(axis=(1, 2)) / 255, 2)
    expected = fedran.summarize(
        offer.features()(Z), pictures[1], rank=8, fingerprint=offer.features().fingerprint
    )
    assert summary.accounts.energy == pytest.approx(expected.accounts.energy, rel=1e-5)
    assert summary.fingerprint == expected.fingerprint


def test_images_need_the_backbone_that_the_server_names(tmp_path):
    with pytest.raises(Refused, match="this site has no backbone"):
        site_of(tmp_path, *images()).prepare(OFFER)
    site = site_of(tmp_path, *images(), backbone=toy_backbone)
    words = "backbone 'toy' at the site and 'test' at the server"
    with pytest.raises(Refused, match=f"source: expected .*{words}.*weights '0000"):
        site.prepare(OFFER)
    assert site.outbox.pending() == []


def test_a_backbone_is_loaded_only_for_images(tmp_path):
    def never():
        raise AssertionError

    site_of(tmp_path, *rows(), backbone=never).prepare(OFFER)


def test_features_of_another_making_are_refused(tmp_path):
    site = site_of(tmp_path, *rows(), made_by={"backbone": "test", "weights": "ab"})
    with pytest.raises(Refused, match="weights 'ab' at the site and 'absent' at the server"):
        site.prepare(OFFER)
    site.prepare(replace(OFFER, source={"weights": "ab", "backbone": "test"}))
    site_of(tmp_path / "b", *rows(), made_by="test").prepare(
        replace(OFFER, source={"backbone": "test"})
    )


def test_an_offer_of_another_federation_is_refused(tmp_path):
    with pytest.raises(Refused, match="federation: expected trial, got other"):
        site_of(tmp_path, *rows()).prepare(Offer("other", "may", 6, 48, 0, "test", 20_000))


def test_an_offer_survives_a_message_and_nothing_else_passes():
    table = replace(OFFER, source={"backbone": "toy", "weights": "ab"})
    for offer in (OFFER, table):
        assert Offer.read(json.loads(json.dumps(offer.fields()))) == offer
    assert Offer.read({**OFFER.fields(), "folder": "/etc", "entry": "os:system"}) == OFFER
    for wrong in (None, 3, "may", [], [1]):
        with pytest.raises(Refused, match="offer: expected an object"):
            Offer.read(wrong)
    for name, value in [
        ("task", "../etc"),
        ("out_features", 2**40),
        ("in_features", "6"),
        ("budget_bytes", -1),
        ("seed", -1),
        ("source", 3),
        ("source", None),
        ("source", {}),
        ("source", {"backbone": 3}),
        ("source", {"seed": "5"}),
        ("source", {"a b": "5"}),
        ("source", {"weights": "x" * 300}),
        ("source", "x" * 300),
        ("source", {f"f{n}": "" for n in range(17)}),
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
    whole = (tmp_path / "may.npz").read_bytes()
    (tmp_path / "torn.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "rotten.npz").write_bytes(whole[:100] + b"!!!!" + whole[104:])
    for name in ("bad", "worse", "pickled", "torn", "rotten"):
        with pytest.raises(Refused, match=f"^{name}.npz: expected"):
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


def test_what_a_function_raises_stays_at_the_site(tmp_path, monkeypatch, caplog):
    (tmp_path / "rows_that_fail.py").write_text(
        "import sys\n\n\ndef load(task):\n"
        "    if task == 'none':\n        raise FileNotFoundError('/srv/secret')\n"
        "    if task == 'much':\n        raise MemoryError\n"
        "    sys.exit('secret') if task == 'exit' else 1 / 0\n"
    )
    (tmp_path / "rows_that_end.py").write_text("raise RuntimeError('secret')")
    monkeypatch.syspath_prepend(tmp_path)
    source = FunctionSource("rows_that_fail:load")
    with pytest.raises(FileNotFoundError, match=r"^rows_that_fail:load: no rows for task none yet"):
        source("none")
    with pytest.raises(MemoryError):
        source("much")
    for task, kind in (("exit", "SystemExit"), ("may", "ZeroDivisionError")):
        with pytest.raises(Refused, match=f"expected rows and labels, got {kind}; the site's log"):
            source(task)
    with pytest.raises(Refused, match="can be imported, got RuntimeError"):
        FunctionSource("rows_that_end:load")
    assert "division by zero" in caplog.text
    sys.modules.pop("rows_that_fail", None)


def test_labels_that_are_missing(tmp_path, monkeypatch):
    (tmp_path / "half_labelled.py").write_text(
        "def load(task):\n    return [[1.0]] * 4, [1, None, float('nan'), '']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert FunctionSource("half_labelled:load")("may").y == [1, None, None, None]
    sys.modules.pop("half_labelled", None)


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (np.zeros((2, 3, 4)), [0, 1], "rows: expected features"),
        (np.zeros((2, 4, 4, 3)), [0, 1], "rows: expected features"),
        (np.zeros((2, 3)), [0], "labels: expected 2, one per row"),
    ],
)
def test_rows_that_do_not_fit(X, y, words):
    with pytest.raises(Refused, match=words):
        Rows(X, y)
