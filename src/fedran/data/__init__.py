"""Datasets, task streams, partitioners and label masks."""
