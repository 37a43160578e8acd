"""Sums that hide rows or sites: differential privacy, noisy sums, sketches."""
