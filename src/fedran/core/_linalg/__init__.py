"""Numerical tools of the core; private."""
