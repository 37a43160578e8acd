"""Without PyTorch the trained methods are listed and checked; running one says what to install."""

import subprocess
import sys

PROGRAM = """
import sys
from pathlib import Path


class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")


sys.meta_path.insert(0, NoTorch())
from fedran_bench.run.config import load_config
from fedran_bench.run.progress import Reporter
from fedran_bench.run.sweep import execute
from fedran_bench.cli.methods import describe_method
from fedran_bench.methods.registry import METHODS

assert [describe_method(key)["family"] for key in METHODS].count("trained") >= 6
found = execute(load_config("c.toml"), Path("out"), Reporter())
assert (found.done, found.skipped, len(found.failed)) == (1, 0, 1), found
"""
CONFIG = """
dataset = "digits"
[stream]
tasks = 2
clients = 2
beta = 1.0
[[method]]
key = "finetune"
[[method]]
key = "fedncm"
"""


def test_without_torch_trained_methods_say_what_to_install_and_others_run(tmp_path):
    (tmp_path / "c.toml").write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "FAILED: trained methods need PyTorch: install fedran's extra 'torch'" in done.stdout
