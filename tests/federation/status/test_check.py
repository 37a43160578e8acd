"""What ``check`` finds about a site, and about the rows of a task before anything is sent."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.core.errors import Refused
from fedran.federation.flower.programs import free_port
from fedran.federation.ops.scaffold import make_site
from fedran.federation.protocol import keys
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.lockfile import locked
from fedran.federation.protocol.roster import Roster
from fedran.federation.secure.site.pinning import PinnedRoster, roster_fingerprint, trust_roster
from fedran.federation.site.settings import SitePaths
from fedran.federation.status import check
from fedran.federation.status.check import check_labels, check_rows, check_site
from helpers.federation.made_site import OFFER, rows


@pytest.fixture
def paths(tmp_path):
    keys.make_certificates(tmp_path / "tls")
    ca, server = tmp_path / "tls" / "ca.crt", f"127.0.0.1:{free_port()}"
    make_site(tmp_path / "site", federation="trial", client="site-1", server=server, ca=ca)
    return SitePaths(tmp_path / "site")


def findings(paths, X, y, offer=OFFER, task="may"):
    np.savez(paths.folder / "data" / f"{task}.npz", features=X, labels=y)
    return list(check_rows(paths, task, offer))


def told(found, *levels):
    """The findings of some levels as one text."""
    return " ".join(f"{f.text}; {f.remedy}" for f in found if f.level in levels)


def change(paths, name, value):
    """Another value of a setting in site.toml."""
    lines = paths.settings_file.read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{name} =")]
    paths.settings_file.write_text("\n".join([f'{name} = "{value}"', *kept]))


def offered(paths):
    """The server has made an offer."""
    paths.state.mkdir(exist_ok=True)
    (paths.state / "offer.json").write_text(json.dumps(OFFER.fields()))


def test_a_new_site_lacks_data_and_a_server_and_does_not_run(paths):
    found = list(check_site(paths))
    assert [finding.level for finding in found].count("problem") == 2
    assert "put TASK.npz" in told(found, "problem")
    assert "may be down" in told(found, "problem")
    assert "fedran federation client" in told(found, "warning")
    assert all(finding.level == "ok" or finding.remedy for finding in found)
    (paths.folder / "ca.crt").unlink()
    assert "ca.crt is missing" in told(check_site(paths), "problem")


def test_rows_are_checked_where_a_task_is_named(paths):
    X, y = rows()
    X[3, 2] = np.nan
    np.savez(paths.folder / "data" / "june.npz", features=X, labels=y)
    assert "rows of june" in told(check_site(paths), "ok")
    assert "NaN" not in told(check_site(paths), "problem")
    found = list(check_site(paths, "june"))
    assert "NaN in row 3" in told(found, "problem")
    assert "no offer yet" in told(found, "ok")
    (paths.folder / "data" / "june.npz").write_bytes(b"nonsense")
    for task, words in (("june", "june.npz"), ("july", "no rows for task july yet")):
        assert words in told(check_site(paths, task), "problem")


def test_a_site_that_runs_and_is_not_admitted_is_a_problem(paths):
    paths.state.mkdir(exist_ok=True)
    note = {"state": "the SuperNode ended: not admitted", "connected": False}
    (paths.state / "connection.json").write_text(json.dumps(note))
    with locked(paths.folder / "log"):
        assert "not admitted" in told(check_site(paths), "problem")
        (paths.state / "connection.json").write_text(json.dumps({**note, "connected": True}))
        assert "the site runs" in told(check_site(paths), "ok")


def test_lost_keys_a_full_disk_and_a_missing_certificate_are_named(paths, monkeypatch):
    (paths.folder / "site.key").unlink()
    (paths.folder / "node.key").chmod(0o644)
    (paths.folder / "ca.crt").write_text("nonsense")
    usage = shutil.disk_usage(paths.folder)._replace(free=1000)
    monkeypatch.setattr(check.shutil, "disk_usage", lambda _: usage)
    found = list(check_site(paths))
    for words in ("no such file", "chmod 600", "ca.crt is missing or not a certificate"):
        assert words in told(found, "problem")
    assert "disk is full" in told(found, "problem")


def test_a_roster_that_nobody_pinned_or_that_has_changed_is_a_problem(paths, tmp_path):
    change(paths, "privacy", "secure")
    assert "no roster" in told(check_site(paths), "problem")
    clients = {f"site-{i}": SiteKey.generate().public for i in (1, 2, 3)}
    file = tmp_path / "roster.toml"
    Roster(clients).save(file)
    found = told(check_site(paths, roster=file), "problem")
    for words in ("NOT pinned", "site-2 NEW", roster_fingerprint(clients), f"--roster {file}"):
        assert words in found
    with pytest.raises(Refused, match="fingerprint"):
        trust_roster(paths, "750e 41a1", file)
    assert trust_roster(paths, roster_fingerprint(clients), file) == roster_fingerprint(clients)
    assert "has pinned the roster of 3 sites" in told(check_site(paths), "ok")
    with pytest.raises(Refused):
        PinnedRoster(paths.state).require({"site-1": clients["site-1"]})
    assert "site-2 REMOVED, site-3 REMOVED" in told(check_site(paths), "problem")


def test_a_clock_that_is_wrong_is_a_problem(paths, monkeypatch):
    answer = SimpleNamespace(headers={"Date": "Mon, 16 Nov 2026 06:00:00 GMT"})
    monkeypatch.setattr(check, "why_unreachable", lambda *_: ("", ""))
    connection = check.http.client.HTTPSConnection
    monkeypatch.setattr(connection, "request", lambda *_: None)
    monkeypatch.setattr(connection, "getresponse", lambda _: answer)
    for ahead, level in ((300, "problem"), (-20, "ok")):
        monkeypatch.setattr(check.time, "time", lambda ahead=ahead: 1794808800.0 + ahead)
        assert f"{abs(ahead)} s {'ahead' if ahead > 0 else 'behind'}" in told(
            check_site(paths), level
        )


def test_good_rows_have_no_problems_and_no_warnings(paths):
    X, y = rows()
    found = findings(paths, X - 0.5, np.array(y))
    assert {finding.level for finding in found} == {"ok"}
    assert "60 rows, features 6 (float64), 3 classes" in told(found, "ok")


def test_classes_that_the_server_would_withhold_are_named_before_they_are_sent(paths):
    X, _ = rows(60)
    few = ["few" if i < 9 else "many" for i in range(60)]
    found = findings(paths, X, few, replace(OFFER, min_group=10))
    assert "withheld, with fewer than 10 rows each: 'few'" in told(found, "ok")
    assert "withheld" not in told(findings(paths, X, few), "ok")


@pytest.mark.parametrize(
    ("alter", "changes", "words"),
    [
        (lambda X: X[:, :5], {}, "5 columns"),
        (lambda X: X - 0.5, {"kind": "hellinger"}, "never negative"),
        (lambda X: X.astype(str), {}, "<U"),
    ],
)
def test_rows_that_would_be_refused_are_problems(alter, changes, words, paths):
    X, y = rows()
    found = findings(paths, alter(X), np.array(y), replace(OFFER, **changes))
    assert words in told(found, "problem")


@pytest.mark.parametrize(
    ("y", "listed", "levels", "words"),
    [
        ([0] * 5 + [1] * 5, (0, 1, 2), [], ""),
        ([0] * 5 + ["1"] * 5 + ["two"] * 5, (0, 1, 2), ["warning", "problem"], "1 and '1'"),
        (["Cat"] * 5 + ["cat "] * 5 + ["dog"] * 2 + [None], (), ["ok", "warning"], "'dog'"),
        ([None], (), ["problem"], "no row has a label"),
        ([1], (), ["problem"], "nothing would be sent"),
    ],
)
def test_labels_are_compared_with_one_another_and_with_the_list(y, listed, levels, words):
    found = list(check_labels(y, 5, listed, None))
    assert [finding.level for finding in found] == levels
    assert words in told(found, "ok", "warning", "problem")


def test_rows_without_a_label_are_counted_with_what_becomes_of_them(paths):
    X, y = rows(90)
    half = np.array([str(v) if i % 2 else "" for i, v in enumerate(y)])
    assert "45 of 90 rows have no label" in told(findings(paths, X, half), "warning")
    change(paths, "pseudo_labels", "none")
    assert told(findings(paths, X, half), "warning") == ""


def test_the_column_of_labels_is_named_in_the_settings(paths):
    X, y = rows()
    lines = [",".join([*map(repr, x), f"c{label}"]) for x, label in zip(X.tolist(), y, strict=True)]
    (paths.folder / "data" / "may.csv").write_text("\n".join(["a,b,c,d,e,f,kind", *lines]))
    (found,) = check_rows(paths, "may", OFFER)
    assert 'set label_column = "kind" in site.toml' in found.text
    change(paths, "label_column", "kind")
    assert {finding.level for finding in check_rows(paths, "may", OFFER)} == {"ok"}


def test_swapped_labels_are_noticed_with_the_newest_head(paths):
    X, y = rows(300)
    phi = OFFER.features()
    server = fedran.Aggregator(fingerprint=phi.fingerprint)
    points = fedran.condense(phi(X), y, fingerprint=phi.fingerprint)
    server.absorb(points, client="a", task="t")
    offered(paths)
    fedran.save(server.solve(), paths.state / "head.fedran")
    good = findings(paths, X, np.array(y), None)
    assert (told(good, "warning"), "recognises" in told(good, "ok")) == ("", True)
    swapped = findings(paths, X, (np.array(y) + 1) % 3, None)
    assert "labels swapped" in told(swapped, "warning")


def test_a_backbone_that_is_missing_damaged_or_another_one_is_a_problem(paths):
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    from fedran.backbones.vit import vit_backbone
    from helpers.bench.tiny_vit import tiny_vit

    images = np.zeros((6, 8, 8, 3), np.uint8)
    np.savez(paths.folder / "data" / "may.npz", images=images, labels=["a"] * 6)
    offer = replace(OFFER, in_features=16, source=vit_backbone(tiny_vit(), "cpu").source)
    assert "names no backbone" in told(check_rows(paths, "may", offer), "problem")
    change(paths, "backbone", "vit:model.safetensors")
    weights = paths.folder / "model.safetensors"
    wanted = {
        Path(tiny_vit()).read_bytes(): ("ok", "images are prepared with bicubic 8x8"),
        Path(tiny_vit(seed=3)).read_bytes(): ("problem", "features made in the same way"),
        Path(tiny_vit()).read_bytes()[:-9]: ("problem", "expected a .safetensors file"),
    }
    for content, (level, words) in wanted.items():
        weights.write_bytes(content)
        assert words in told(check_rows(paths, "may", offer), level)
    weights.unlink()
    assert "does not exist" in told(check_rows(paths, "may"), "problem")


def test_no_class_is_withheld_under_differential_privacy(paths):
    X, _ = rows(6)
    names = np.array([f"c{i}" for i in range(6)])
    assert "no class has 5 rows" in told(findings(paths, X, names, None), "problem")
    listed = {"classes": tuple(names.tolist()), "out_features": OFFER.in_features}
    private = replace(OFFER, privacy="dp", **listed)
    assert "no class has" not in told(findings(paths, X, names, private), "problem")
    change(paths, "privacy", "dp")
    assert "no class has" not in told(findings(paths, X, names, None), "problem")
