"""Frozen feature extractors, the feature store, and the export of heads to ONNX."""

from fedran.backbones.export import to_onnx

__all__ = ["to_onnx"]
