"""Replaces functions of Flower that are not its public API, and may be gone in its next version.

Flower is therefore pinned to one minor release in pyproject.toml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def replace_steps(module: ModuleType, steps: Mapping[str, Callable[..., Any]]) -> None:
    """Replace functions of Flower. One that this version does not have is an error."""
    for name, step in steps.items():
        if not callable(getattr(module, name, None)):
            raise NotImplementedError(
                f"this version of Flower has no {module.__name__}.{name}, which fedran replaces to "
                "refuse foreign apps and requests; install the version in constraints.txt"
            )
        setattr(module, name, step)
