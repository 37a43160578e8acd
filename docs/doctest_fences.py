"""For mkdocstrings: examples outside a section ``Examples`` are shown as code, not as quotes."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^|\n\n)(?P<block>>>> .*?)(?=\n\n|\Z)", re.S)


class DoctestFences(griffe.Extension):
    """Puts fences around paragraphs that start with ``>>>``."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for every module, class, function and attribute."""
        docstring = obj.docstring
        if docstring is not None and not re.search(r"^Examples\n-+$", docstring.value, re.M):
            docstring.value = EXAMPLE.sub(r"\n\n```pycon\n\g<block>\n```", docstring.value)
