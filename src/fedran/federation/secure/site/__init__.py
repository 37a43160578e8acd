"""Secure sums at a site: its answers, what it remembers, and the roster that it trusts."""
