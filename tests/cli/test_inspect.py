"""``fedran inspect``."""

import json

import numpy as np
import pytest

import fedran


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
    np.save(tmp_path / "rows.npy", np.ones((30, 9)))
    code, _, err = cli("inspect", str(tmp_path / "rows.npy"))
    assert code == 2
    assert "rows.npy: message: expected a fedran file, got another kind of file, or a dam" in err
    (tmp_path / "rows.npy").write_bytes(b"")
    _, _, err = cli("inspect", str(tmp_path / "rows.npy"))
    assert "rows.npy: message: expected a fedran file, got an empty one" in err


def test_inspect_names_a_damaged_file(cli, summary, tmp_path):
    path = tmp_path / "up.fedran"
    fedran.save(summary, path)
    blob = bytearray(path.read_bytes())
    blob[-1] ^= 1
    path.write_bytes(blob)
    code, _, err = cli("inspect", str(path))
    assert code == 2
    assert "up.fedran: sha256" in err


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
