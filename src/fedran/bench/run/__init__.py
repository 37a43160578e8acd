"""Running experiments."""
