"""Code that all trained methods share."""
