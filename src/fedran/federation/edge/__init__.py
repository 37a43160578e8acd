"""Edges: sites that sum the uploads of their members and forward one upload."""
