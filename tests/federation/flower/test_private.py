"""Flower is pinned to one release, because names are used that it does not promise."""

import ast
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedran.federation import flower
from fedran.federation.flower import private

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's libraries


def test_this_version_of_flower_has_every_name_that_is_used():
    private.check_names()


def test_a_missing_name_is_an_error_that_says_which(monkeypatch):
    monkeypatch.setitem(private.CALLED, "flwr.superlink.main", ("create_app", "gone"))
    with pytest.raises(NotImplementedError, match=r"no flwr\.superlink\.main\.gone.*1\.41"):
        private.check_names()


def test_the_table_of_private_names_agrees_with_the_imports():
    imported, whole = {}, set()
    for path in Path(flower.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("flwr."):
                imported.setdefault(node.module, set()).update(name.name for name in node.names)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
                whole |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    listed = {module: set(names) for module, names in private.IMPORTED.items()}
    assert listed == {m: names for m, names in imported.items() if m not in PUBLIC}
    assert whole <= private.CALLED.keys()


def test_the_pin_is_the_installed_minor_release():
    root = next(p for p in Path(__file__).parents if (p / "pyproject.toml").is_file())
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    major, minor = private.VERSION.split(".")
    assert version("flwr").startswith(f"{private.VERSION}.")
    (pin,) = [d for d in project["optional-dependencies"]["flower"] if re.match(r"flwr\b", d)]
    assert pin.endswith(f">={private.VERSION},<{major}.{int(minor) + 1}")
