"""Methods from outside the package: by module and class, and incomplete ones."""

import re
import sys
from pathlib import Path

import pytest

from fedran_bench.results.result import read_results
from fedran_bench.run.config import load_config
from fedran_bench.run.job import jobs
from fedran_bench.run.runner import PreparedJob
from helpers.bench.wanderer import Wanderer, toy_dataset, toy_stream

PAGE = (Path(__file__).parents[3] / "docs/how-to/add-a-method.md").read_text()
MODULE = re.search(r"^```python\n(.*?)^```", PAGE, re.M | re.S)[1]
CONFIG = re.search(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)[1]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """The documented file in an empty working folder, forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_methods.py").write_text(MODULE)
    (tmp_path / "mine.toml").write_text(CONFIG)
    yield
    for name in ("my_methods", "broken_methods"):
        sys.modules.pop(name, None)


def test_the_documented_experiment_runs_a_method_from_a_file(cli, tmp_path):
    code, out, err = cli("bench", "run", "mine.toml")
    assert (code, err) == (0, "")
    assert "3 runs done, 0 skipped, 0 failed" in out
    results = {
        (r.key, r.params.get("pull")): r for r in read_results([tmp_path / "runs/mine.jsonl"])
    }
    without, pulled = (results["my_methods:PulledMeans", pull] for pull in (0.0, 5.0))
    assert without.label == "Pulled means"
    assert without.A_T > 80
    assert pulled.acc != without.acc
    assert set(without.hashes) - set(results["fedncm", None].hashes) == {"method"}
    first, second, third = (job.prepare().run_id for job in jobs(load_config("mine.toml")))
    assert {first, second, third} == {r.run_id for r in results.values()}
    (tmp_path / "my_methods.py").write_text(MODULE + "\n# changed\n")
    changed = [job.prepare().run_id for job in jobs(load_config("mine.toml"))]
    assert (changed[0] != first, changed[1] != second, changed[2] == third) == (True, True, True)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("nowhere:Thing", "no module 'nowhere'; looked in the Python path and in the current"),
        ("my_methods:Thing", "my_methods has no class 'Thing'"),
        ("my_methods:np", "expected a class, got module"),
        ("broken_methods:Plain", "Plain must be a dataclass derived from BaseMethod"),
        ("broken_methods:Nameless", "abstract methods aggregate, client, init, name, predict"),
        ("broken_methods:Needy", "needs the setting 'size'"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_computed(key, words, cli, tmp_path):
    (tmp_path / "broken_methods.py").write_text(
        "from dataclasses import dataclass\n"
        "from my_methods import BaseMethod, PulledMeans\n"
        "class Plain: ...\n"
        "@dataclass(frozen=True)\n"
        "class Nameless(BaseMethod): ...\n"
        "@dataclass(frozen=True)\n"
        "class Needy(PulledMeans):\n"
        "    size: int = __import__('dataclasses').field(kw_only=True)\n"
    )
    (tmp_path / "mine.toml").write_text(CONFIG.split("[[method]]")[0] + f'[[method]]\nkey="{key}"')
    code, _, err = cli("bench", "run", "mine.toml")
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_class_without_a_file_has_no_hash_but_runs():
    space = {"Wanderer": Wanderer, "__name__": "typed"}
    exec(compile("class Typed(Wanderer): ...", "/nowhere/cell.py", "exec"), space)
    dataset = toy_dataset()
    job = PreparedJob("typed", space["Typed"](), dataset, toy_stream(dataset))
    assert set(job.hashes) == {"stream", "features"}
