import json
import subprocess
import sys

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


def test_demo_prints_the_table_within_80_columns(cli):
    code, out, err = cli("demo")
    assert code == 0
    assert err == ""
    for word in ("FedRAN", "FedRAN-paper", "Exact Gram", "FedNCM", "A_avg", "Where to go"):
        assert word in out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "…" not in out


def test_plan_answers_both_questions(cli):
    sizes = ("--out-features", "8192", "--classes", "20")
    code, out, _ = cli("plan", "--budget", "1.5MiB", *sizes, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["upload"] <= 1.5 * 2**20
    code, out, _ = cli("plan", "--rank", str(found["rank"]), *sizes, "--json")
    assert json.loads(out)["upload"] == found["upload"]
    code, out, _ = cli("plan", "--budget", "2MB", *sizes, "--in-features", "1280")
    assert "8-bit features" in out
    code, _, err = cli("plan", "--budget", "10kB", *sizes)
    assert code == 2
    assert "10kB is too small: the sums of 20 classes and one column" in err


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


def test_inspect_covers_the_rarer_states(cli, tmp_path):
    empty = fedran.summarize(np.zeros((0, 4)), [], rank=2)
    fedran.save(empty, tmp_path / "empty.fedran", "int8")
    code, out, _ = cli("inspect", str(tmp_path / "empty.fedran"))
    assert code == 0
    assert "none: the features are not identified" in out
    ranked = fedran.Aggregator(32, server_rank=3, order="paper")
    H = np.eye(32)[:20]
    ranked.absorb(fedran.summarize(H, list(range(20)), 4), client="a", task="t")
    fedran.save(ranked, tmp_path / "ranked.fedran")
    code, out, _ = cli("inspect", str(tmp_path / "ranked.fedran"))
    assert "rank 3, order paper" in out
    assert "and 12 more" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "nowhere.fedran"], "nowhere.fedran: no such file"),
        (["inspect", "."], "this is a folder"),
        (["plan", "--bugdet", "3"], "Did you mean '--budget'"),
        (["plan", "--out-features", "10", "--classes", "2"], "give --budget or --rank, not both"),
        (["plan", "--out-features", "0", "--classes", "2", "--rank", "1"], "positive integer"),
        (["plan", "--out-features", "8", "--classes", "2", "--budget", "x"], "such as 2000000"),
        (["nonsense"], "No such command"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(cli, arguments, words):
    code, _, err = cli(*arguments)
    assert code == 2
    assert words in err
    assert err.startswith("fedran: ")
    assert err.count("\n") == 1


def test_damaged_files_are_named(cli, summary, tmp_path):
    path = tmp_path / "up.fedran"
    fedran.save(summary, path)
    blob = bytearray(path.read_bytes())
    blob[-1] ^= 1
    path.write_bytes(blob)
    code, _, err = cli("inspect", str(path))
    assert code == 2
    assert "up.fedran: sha256" in err


def test_debug_shows_the_traceback(cli):
    code, _, err = cli("--debug", "inspect", "nowhere")
    assert code == 2
    assert "Traceback" in err


def test_help_and_version(cli):
    assert "demo" in cli("--help")[1]
    assert cli("--version")[1].strip() == f"fedran {fedran.__version__}"
    assert cli()[0] == 2


def test_unexpected_errors_are_one_line_too(cli, monkeypatch):
    def broken(*_):
        raise RuntimeError("boom\nsecond line")

    monkeypatch.setattr("fedran.cli.inspect.describe", broken)
    code, _, err = cli("inspect", __file__)
    assert code == 2
    assert err.count("\n") == 1
    assert "boom" in err


def test_interrupt_is_130(cli, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedran.cli.inspect.describe", stop)
    assert cli("inspect", __file__)[0] == 130


def test_module_entry_point_runs():
    done = subprocess.run(
        [sys.executable, "-m", "fedran", "--version"], capture_output=True, text=True, check=True
    )
    assert fedran.__version__ in done.stdout


def test_core_wire_and_bench_import_without_terminal_libraries():
    code = (
        "import sys; sys.modules['typer'] = sys.modules['rich'] = None\n"
        "import fedran, fedran.bench.demo, fedran.methods.registry\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
