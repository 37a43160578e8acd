"""Secure sums at the server: open attempts, their place in the store, and the privacy budget."""
