"""Frozen feature extractors, the feature store, and the export of heads to PyTorch."""

from fedran.backbones.torch_export import to_torch

__all__ = ["to_torch"]
