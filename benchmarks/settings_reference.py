"""Tables of settings in the documentation: ``python benchmarks/settings_reference.py``.

A page marks a table with a comment that names a dataclass, and with a second comment its end:

    <!-- settings fedran_bench.run.config.StreamSettings -->
    <!-- end of settings -->

Everything between the two is replaced by a table of the settings of the dataclass. With
``beyond OTHER`` only the settings are listed in which the dataclass differs from another one. A
test keeps the pages equal to the code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType
from typing import Any

from fedran.settings import alternatives, default_of, digits, hints, split_hint, type_name

DOCS = Path(__file__).resolve().parent.parent / "docs"
MARKED = re.compile(
    r"<!-- settings (?P<name>[\w.]+)(?: beyond (?P<base>[\w.]+))? -->\n"
    r".*?<!-- end of settings -->",
    re.DOTALL,
)


def table(name: str, base: str | None = None) -> list[str]:
    """Lines of the table of a dataclass, without those that the dataclass ``base`` has too."""
    module, _, kind = name.rpartition(".")
    known = table(base)[2:] if base else []
    lines = table_of(getattr(importlib.import_module(module), kind))
    return lines[:2] + [line for line in lines[2:] if line not in known]


def table_of(kind: type[Any]) -> list[str]:
    """Name, type, default and explanation of every setting of a dataclass."""
    texts, lines = (
        explanations(kind),
        ["| setting | type | default | meaning |", "|---|---|---|---|"],
    )
    for field in (f for f in fields(kind) if f.name in hints(kind)):
        plain, rules = split_hint(hints(kind)[field.name])
        default = default_of(field)
        if default is MISSING:
            shown = "required"
        elif default is None or default in ("", (), [], {}):
            shown = "none"
        elif isinstance(default, bool):
            shown = str(default).lower()
        else:
            shown = digits(default) if isinstance(default, (int, float)) else str(default)
        # None means that the setting is left out of the table, so it is no type of a value.
        kinds = [type_name(kind) for kind in alternatives(plain) if kind is not NoneType]
        phrases = [" or ".join(kinds), *(rule.phrase for rule in rules)]
        if phrases[-1].startswith(phrases[0]):  # "text in one line" says "text" already
            phrases = phrases[-1:]
        meaning = texts.get(field.name, "").replace("``", "`")
        cells = (f"`{field.name}`", ", ".join(phrases), shown, meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def explanations(kind: type[Any]) -> dict[str, str]:
    """The strings below the fields of a dataclass and of its bases."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if "__dataclass_fields__" not in vars(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for before, after in zip(body.body, body.body[1:], strict=False):
            if not (isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)):
                continue
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                texts[before.target.id] = " ".join(str(after.value.value).split())
    return texts


def filled(page: str) -> str:
    """The text of a page with its tables as the code has them."""

    def block(found: re.Match[str]) -> str:
        opening = found[0].partition("\n")[0]
        lines = table(found["name"], found["base"])
        return "\n".join([opening, "", *lines, "", "<!-- end of settings -->"])

    return MARKED.sub(block, page)


if __name__ == "__main__":
    for path in sorted(DOCS.rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        if filled(before) != before:
            path.write_text(filled(before), encoding="utf-8")
            print(path.relative_to(DOCS.parent))
