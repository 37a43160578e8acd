"""Access to the cells of a table of the report, and hostile strings."""

import re

HOSTILE = "<script>alert('x')</script>\"&|*_b_*\x1b[31m\n\u202e" + "long " * 200
LONG = "<script>alert(1)</script>\"'><img src=http://x.example/>\x1b[2J" + "w" * 3000


def column(table, heading, group=None):
    """The cells of a column by the text of the first cell of their row."""
    at = next(
        i
        for i, c in enumerate(table.columns)
        if c.text == heading and (group is None or c.group == group)
    )
    return {row[0].text: row[at] for row in table.rows}


def texts(table, heading, group=None):
    """The texts of a column by the text of the first cell of their row."""
    return {name: cell.text for name, cell in column(table, heading, group).items()}


def assert_is_plain_text(rendered):
    """The hostile string is in it, and nothing of it is markup or a control character."""
    assert "&lt;script&gt;" in rendered
    assert "<script" not in rendered
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", rendered)


def first_cells(*pages):
    """The text of the first cell of every row in the tables of some pages."""
    tables = [t for page in pages for section in page.sections for t in section.tables]
    return [row[0].text for table in tables for row in table.rows]
