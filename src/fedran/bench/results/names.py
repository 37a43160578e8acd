"""Names that tell methods of one label apart: by the settings in which they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedran.bench.results.result import Result


def as_text(fields: Mapping[str, Any]) -> str:
    """Settings as one text, equal where they are.

    >>> as_text({"b": 1, "a": None})
    '{"a": null, "b": 1}'
    """
    return json.dumps(fields, sort_keys=True, default=str)


def difference(result: Result, others: Sequence[Result]) -> str:
    """What to add to a label: nothing where only one result has it.

    >>> from types import SimpleNamespace as R
    >>> runs = [R(key="k", params={"rank": r, "M": 8}) for r in (16, 32)]
    >>> difference(runs[0], runs)
    ' (rank=16)'
    """
    if len(others) == 1:
        return ""
    differ = [
        f"{k}={v}"
        for k, v in sorted(result.params.items())
        if len({as_text({"": r.params.get(k)}) for r in others}) > 1
    ]
    if len({r.key for r in others}) > 1:
        differ.insert(0, result.key)
    return f" ({', '.join(differ)})" if differ else ""
