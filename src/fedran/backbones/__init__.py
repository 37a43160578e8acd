"""Frozen feature extractors, the feature store, and the export of heads to PyTorch and ONNX."""

from fedran.backbones.export import to_onnx, to_torch

__all__ = ["to_onnx", "to_torch"]
