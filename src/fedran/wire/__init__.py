"""Summaries, heads and aggregators as bytes and files: encoding, validation, sizes, plans."""
