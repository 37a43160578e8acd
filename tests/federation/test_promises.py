"""Every promise about the federation in the documentation names a test that exists."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("section", "folder"),
    [
        ("What happens when something fails", ""),
        ("What the store promises", ""),
        ("With secure sums", "server/"),
    ],
)
def test_promises_in_the_documentation_name_tests_that_exist(section, folder):
    page = (HERE.parents[1] / "docs" / "explanation" / "federation.md").read_text()
    table = page.partition(f"## {section}")[2].partition("\n## ")[0]
    named = re.findall(r"\| `(\S+)::(\w+)` \|", table)
    assert len(named) == table.count("\n| ") - 1
    for file, test in named:
        text = (HERE / f"{folder}{file}").read_text()
        assert re.search(rf"^def {test}\(", text, re.M), test
