"""``fedran inspect``."""

import json

import numpy as np
import pytest

import fedran
from fedran.cli.inspect import describe
from helpers.wire.golden import golden_aggregator
from helpers.wire.messages import fixture


@pytest.fixture
def summary():
    rng = np.random.default_rng(0)
    phi = fedran.RandomFeatures(8, 64, source="toy\x1b[31m")
    Z = rng.random((40, 8))
    names = np.array(["cat", "[red]dog"])
    y = names[rng.integers(0, 2, 40)]
    return fedran.summarize(phi(Z), y, 10, fingerprint=phi.fingerprint)


def test_inspect_reads_uploads_heads_and_aggregators(cli, summary, tmp_path):
    fedran.save(summary, tmp_path / "up.fedran")
    agg = fedran.Aggregator(64)
    agg.absorb(summary, client="site-1", task="may")
    fedran.save(agg.solve(), tmp_path / "head.fedran")
    fedran.save(agg, tmp_path / "agg.fedran")
    code, out, _ = cli("inspect", str(tmp_path / "up.fedran"))
    assert code == 0
    assert "one client's summary" in out
    assert "mixed" in out
    assert "[red]dog" in out
    assert "\x1b[31m" not in out
    code, out, _ = cli("inspect", str(tmp_path / "head.fedran"))
    assert "a classifier" in out
    assert "Cholesky" in out
    found = json.loads(cli("inspect", "--json", str(tmp_path / "agg.fedran"))[1])
    assert found["kind"] == "aggregator"
    assert [row[:2] for row in found["ledger"]] == [["site-1", "may"]]
    found = json.loads(cli("inspect", "--json", str(tmp_path / "up.fedran"))[1])
    assert found["accounts"]["n_rows"] == sum(found["counts"]) == 40
    assert found["fingerprint"]["M"] == found["out_features"] == 64
    assert found["bytes"] == (tmp_path / "up.fedran").stat().st_size


def test_inspect_shows_empty_uploads_and_servers_with_many_classes(cli, tmp_path):
    empty = fedran.summarize(np.zeros((0, 4)), [], rank=2)
    fedran.save(empty, tmp_path / "empty.fedran")
    code, out, _ = cli("inspect", str(tmp_path / "empty.fedran"))
    assert code == 0
    assert "none: the features are not identified" in out
    agg = fedran.Aggregator(32)
    H = np.eye(32)[:20]
    agg.absorb(fedran.summarize(H, list(range(20)), 4), client="a", task="t")
    fedran.save(agg, tmp_path / "agg.fedran")
    code, out, _ = cli("inspect", str(tmp_path / "agg.fedran"))
    assert "and 12 more" in " ".join(out.split())


def test_inspect_says_that_a_file_is_of_another_kind(cli, tmp_path):
    for content, found in ((b"\x93NUMPY", "another kind of file, or a dam"), (b"", "an empty one")):
        (tmp_path / "rows.npy").write_bytes(content)
        code, _, err = cli("inspect", str(tmp_path / "rows.npy"))
        assert (code, f"rows.npy: message: expected a fedran file, got {found}" in err) == (2, True)


def test_inspect_shows_what_an_envelope_says(cli, summary, tmp_path):
    pytest.importorskip("cryptography")
    from fedran.federation.protocol.identity import SiteKey
    from fedran.federation.protocol.messages import seal

    fields = {"federation": "trial", "client": "ward-1", "task": "may", "fingerprint": "f" * 64}
    path = tmp_path / "may.envelope"
    path.write_bytes(seal(fedran.encode(summary), SiteKey.generate(), **fields).to_bytes())
    code, out, _ = cli("inspect", str(path))
    assert code == 0
    for words in ("envelope of ward-1 for may", "signed statement", "trial", "[red]dog", "rank"):
        assert words in out
    found = json.loads(cli("inspect", "--json", str(path))[1])
    assert found["statement"]["client"] == "ward-1"
    assert sum(found["counts"]) == 40
    path.write_bytes(path.read_bytes()[:-3])
    code, _, err = cli("inspect", str(path))
    assert (code, err.count("\n")) == (2, 1)


def described(name: str, tmp_path) -> dict:
    path = tmp_path / name
    path.write_bytes(fixture(name))
    title, sections, fields = describe(path)
    json.dumps(fields, allow_nan=False)
    return {"title": title, **sections}


@pytest.mark.parametrize(("name", "width"), [("mixed", "7.00 bits"), ("float32", "float32")])
def test_an_upload_is_described(name, width, tmp_path):
    said = described(name, tmp_path)
    assert said["content"]["center"].startswith("class")
    assert described("uncentred", tmp_path)["content"]["center"].startswith("none")
    assert "upload" in said["title"]
    assert said["file"]["bytes"] == len(fixture(name))
    assert said["file"]["sha256"] == fedran.decode(fixture(name)).digest
    assert said["content"]["precision"].startswith(name)
    assert width in said["content"]["precision"]
    assert said["content"]["classes"] == "4: -3 (4), 12 (4), ant (1), été (1)"
    assert (said["content"]["rank"], said["content"]["rows"]) == (3, 11)
    assert said["content"]["labelled rows"] == 10
    assert said["file"]["format version"] == "3.0"
    assert said["accounts"]["cut"].startswith("64 (")
    assert said["fingerprint"]["backbone"] == "golden"


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


@pytest.mark.parametrize(("group_size", "kind"), [(1, "accuracy"), (4, "agreement")])
def test_points_their_servers_and_their_heads_are_described(group_size, kind, cli, tmp_path):
    rng = np.random.default_rng(0)
    phi = fedran.KernelFeatures(5, bias=True, source="toy")
    y = np.repeat(["cat", "[red]dog"], [30, 10])
    points = fedran.condense(phi(rng.random((40, 5))), y, group_size, fingerprint=phi.fingerprint)
    agg = fedran.Aggregator(fingerprint=phi.fingerprint)
    agg.absorb(points, client="a", task="t")
    agg.absorb(points + points, client="b", task="t")
    head = agg.solve(landmarks=7)
    saved = {}
    for name, obj in (("up", points), ("agg", agg), ("head", head)):
        path = tmp_path / name
        fedran.save(obj, path)
        saved[name] = describe(path)[1]["content"]
        code, out, _ = cli("inspect", str(path))
        assert (code, "[red]dog" in out) == (0, True)
    sizes = points.counts.min(), points.counts.max()
    for name, times in (("up", 1), ("agg", 3)):
        said = saved[name]
        assert (said["points"], said["rows"]) == (times * len(points.counts), times * 40)
        assert sizes == (said["rows of the smallest group"], said["rows of the largest group"])
    assert saved["up"]["classes"] == "2: [red]dog (10), cat (30)"
    assert (saved["agg"]["takes"], saved["agg"]["uploads"]) == ("points", 2)
    said = saved["head"]
    assert (said["landmarks"], said["columns"]) == (len(head.landmarks), 6)
    assert (said["scale of the kernel"], said["ridge per row"]) == (head.scale, head.diagnosis.lam)
    assert said[f"leave-one-out {kind}"] == f"{head.diagnosis.agreement:.2%}"
    assert ("temperature" in said) == (group_size == 1)
    found = json.loads(cli("inspect", "--json", str(tmp_path / "up"))[1])
    assert (found["rows"], found["smallest"], found["largest"]) == (40, *sizes)
    assert found["bytes"] == (tmp_path / "up").stat().st_size
    empty = fedran.condense(np.zeros((0, 6)), [], fingerprint=phi.fingerprint)
    fedran.save(empty, tmp_path / "none")
    assert describe(tmp_path / "none")[1]["content"]["points"] == 0


def test_foreign_text_is_escaped(tmp_path):
    evil = "\x1b[31m\nboo"
    print_ = fedran.Fingerprint.of(backbone=evil)
    fedran.save(fedran.summarize(np.eye(2), [evil, "x"], fingerprint=print_), tmp_path / "a")
    said = describe(tmp_path / "a")[1]
    assert said["content"]["classes"].isprintable()
    assert said["fingerprint"]["backbone"].isprintable()


def test_calibration_and_novelty_are_described(tmp_path):
    y = np.arange(60) % 6
    clf = fedran.FedRANClassifier(out_features=32).fit(np.eye(6)[y], y)
    clf.novelty(np.eye(6))
    fedran.save(clf.head_, tmp_path / "head")
    said = describe(tmp_path / "head")[1]["content"]
    assert said["novelty"].startswith("from ")
    assert said["calibration"] == "from 60 rows"
    assert said["temperature"] == clf.head_.calibration.temperature
    assert described("head", tmp_path)["content"]["calibration"].startswith("none")
