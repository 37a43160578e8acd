"""Every imported distribution is declared, by the package or by the extra that needs it."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    "fedran/backbones": ("images", "torch", "onnx", "efficientnet"),
    "fedran/data": ("images", "parquet", "dicom"),
    "fedran/federation": ("flower",),
    "fedran_bench": ("bench", "torch"),
}
"""Room -> the extras whose distributions it may import."""


def normal(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def imported(tree):
    """The modules that a program imports; those that only a type checker imports are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module
        else:
            yield from imported(node)


def undeclared(files, extras):
    declared = {normal(name) for name in PROJECT["dependencies"]}
    for extra in extras:
        declared |= {normal(name) for name in PROJECT["optional-dependencies"][extra]}
    known = packages_distributions()
    for path in files:
        for module in imported(ast.parse(path.read_text())):
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names or top in {"fedran", "fedran_bench"}:
                continue
            names = {normal(name) for name in known.get(top, [top])}
            if not names & declared:
                yield f"{path.relative_to(ROOT)} imports {top}: {sorted(names)} is not declared"


@pytest.mark.parametrize("room", ["", *EXTRAS])
def test_every_imported_distribution_is_declared(room):
    files = [
        path
        for path in sorted((ROOT / "src" / room).rglob("*.py"))
        if room or not any(path.is_relative_to(ROOT / "src" / other) for other in EXTRAS)
    ]
    assert files
    assert list(undeclared(files, EXTRAS.get(room, ()))) == []


def test_an_undeclared_distribution_is_named():
    (found, *_) = undeclared([ROOT / "src/fedran/federation/flower/superlink.py"], ())
    assert "imports fastapi: ['fastapi'] is not declared" in found
