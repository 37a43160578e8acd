"""Frozen feature extractors, the feature store, and the export of heads to PyTorch and ONNX."""

from fedran.backbones.onnx_export import to_onnx
from fedran.backbones.torch_export import to_torch

__all__ = ["to_onnx", "to_torch"]
