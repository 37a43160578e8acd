"""Frozen extractors and the export of heads to other frameworks."""
