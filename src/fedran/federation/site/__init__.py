"""The side of a site."""
