"""Every promise of the store in the documentation names a test that exists."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_the_promises_of_the_store_name_tests_that_exist():
    page = (HERE.parents[1] / "docs" / "explanation" / "federation.md").read_text()
    table = page.partition("## What the store promises")[2].partition("\n## ")[0]
    named = re.findall(r"\| `(\S+)::(\w+)` \|", table)
    assert len(named) == table.count("\n| ") - 1
    for file, test in named:
        assert re.search(rf"^def {test}\(", (HERE / file).read_text(), re.M), test
