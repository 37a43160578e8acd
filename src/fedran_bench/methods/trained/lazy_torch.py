"""PyTorch, imported on first use, so that settings can be listed and checked without it."""

from __future__ import annotations

from typing import Any, TypeAlias

from fedran.core.errors import MissingExtra

Tensor: TypeAlias = Any
Weights: TypeAlias = dict[str, Tensor]
"""Parameters and BatchNorm statistics by name, including ``head.weight`` and ``head.bias``."""


class _Torch:
    def __getattr__(self, name: str) -> Any:
        return getattr(load_torch(), name)


torch = _Torch()


def load_torch() -> Any:
    """The torch module, or an ImportError that says how to install it."""
    try:
        import torch as found
    except ImportError:
        raise MissingExtra("trained methods need PyTorch", "torch") from None
    return found
