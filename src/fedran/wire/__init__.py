"""Summaries, heads and aggregators as bytes and files: codecs, validation, sizes, plans."""
