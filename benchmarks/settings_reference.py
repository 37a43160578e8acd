"""Tables of settings in the documentation: ``python benchmarks/settings_reference.py``.

A page marks a table with a comment that names a dataclass, and with a second comment its end:

    <!-- settings fedran.bench.run.config.StreamSettings -->
    <!-- end of settings -->

Everything between the two is replaced by a table of the settings of the dataclass. With
``beyond OTHER`` only the settings are listed in which the dataclass differs from another one. A
test keeps the pages equal to the code.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from fedran.settings import markdown_table

DOCS = Path(__file__).resolve().parent.parent / "docs"
MARKED = re.compile(
    r"<!-- settings (?P<name>[\w.]+)(?: beyond (?P<base>[\w.]+))? -->\n"
    r".*?<!-- end of settings -->",
    re.DOTALL,
)


def table(name: str, base: str | None = None) -> list[str]:
    """Lines of the table of a dataclass, without those that the dataclass ``base`` has too."""
    module, _, kind = name.rpartition(".")
    lines = markdown_table(getattr(importlib.import_module(module), kind)).splitlines()
    known = table(base)[2:] if base else []
    return lines[:2] + [line for line in lines[2:] if line not in known]


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
