"""Every promise about the federation in the documentation names a test, which exists."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "federation.md"


@pytest.mark.parametrize(
    "section",
    ["What happens when something fails", "What the store promises", "With secure sums"],
)
def test_every_promise_names_a_test(section):
    table = PAGE.read_text().partition(f"## {section}")[2].partition("\n## ")[0]
    assert len(re.findall(r"\| `\S+::test_\w+` \|", table)) == table.count("\n| ") - 1
