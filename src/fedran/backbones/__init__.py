"""Frozen extractors and the export of heads to other frameworks."""

from fedran.backbones.torch_export import to_torch

__all__ = ["to_torch"]
